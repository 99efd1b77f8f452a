
// onFingers calls moved(scale, from, to) while one finger drags an element, or two pinch
// it: what lay at from lies at to, that much larger, in pixels of the window. Taps are
// clicks, and a finger that goes up or down scrolls the page (touch-action: pan-y).
function onFingers(element, moved) {
  let before = null, now = null, mine;
  const of = (e) => {
    const all = [...e.touches].filter((t) => element.contains(t.target)).slice(0, 2), middle = (what) => all.reduce((sum, t) => sum + t[what], 0) / all.length;
    return all.length && { x: middle("clientX"), y: middle("clientY"), apart: all.length > 1 ? Math.hypot(all[0].clientX - all[1].clientX, all[0].clientY - all[1].clientY) : 0 };
  };
  const apply = () => {
    if (before && now) moved(before.apart > 8 && now.apart > 8 ? now.apart / before.apart : 1, before, now);
    before = now || before; now = null;
  };
  const changed = (e) => {
    apply();
    before = of(e);
    if (!before) mine = undefined;
    else if (before.apart) { mine = true; if (e.cancelable) e.preventDefault(); }
  };
  element.addEventListener("touchstart", changed, { passive: false });
  for (const name of ["touchend", "touchcancel"]) element.addEventListener(name, changed);
  element.addEventListener("touchmove", (e) => {
    const at = of(e);
    if (!before || !at) return;
    if (mine === undefined) mine = Math.abs(at.x - before.x) > Math.abs(at.y - before.y);
    if (!mine || !e.cancelable) return; // the page scrolls
    e.preventDefault();
    if (!now) requestAnimationFrame(apply);
    now = at;
  }, { passive: false });
}
