package probes

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/rounds"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/tenants"
)

// smallLibrary compiles a small libcuda.so.1 and returns what is in it.
func smallLibrary(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lib.so")
	compile(t, path, "odd.c", "-fPIC", "-shared", "-fvisibility=default", "-Wl,-soname,libcuda.so.1")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// differentLibraries writes n libraries that differ in their last bytes, and returns
// their paths.
func differentLibraries(t *testing.T, dir string, n int) []string {
	t.Helper()
	text := smallLibrary(t)
	paths := make([]string, n)
	for i := range paths {
		paths[i] = filepath.Join(dir, fmt.Sprint(i), "libcuda.so.1")
		if err := os.Mkdir(filepath.Dir(paths[i]), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(paths[i], fmt.Appendf(text, "%d", i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// mapAll has processes of a user map the files, an equal part each.
func mapAll(t *testing.T, user uint32, processes int, paths []string) *program {
	t.Helper()
	bin := filepath.Join(open2all(t), "mapmany")
	compile(t, bin, "mapmany.c")
	per := (len(paths) + processes - 1) / processes
	p := spawn(t, as(user, bin, fmt.Sprint(processes), fmt.Sprint(per)), "")
	for _, path := range paths {
		fmt.Fprintln(p.in, path)
	}
	p.do("", "up")
	return p
}

// oddOf starts the program of testdata/odd.c as a user, with a library of its own.
func oddOf(t *testing.T, user uint32) (p *program, library string) {
	t.Helper()
	dir := open2all(t)
	library = filepath.Join(dir, "libcuda.so.1")
	compile(t, library, "odd.c", "-fPIC", "-shared", "-fvisibility=default", "-Wl,-soname,libcuda.so.1")
	compile(t, filepath.Join(dir, "odd"), "oddmain.c", library, "-Wl,-rpath,$ORIGIN")
	return spawn(t, as(user, filepath.Join(dir, "odd")), "up"), library
}

// A user whose processes map more libraries than may be probed keeps no other user's
// from being probed, and everybody hears that not all of his own are.
func TestOneUserTakesAllSlots(t *testing.T) {
	tenants.ByUser(t)
	tr := openTrace(t, Options{All: true, Follow: true})
	begin := time.Now()
	mapAll(t, nobody, 19, differentLibraries(t, open2all(t), 1100))
	eventually(t, "all slots to be taken", func() bool {
		tr.libs.mu.Lock()
		defer tr.libs.mu.Unlock()
		return len(tr.libs.attachments()) >= maxAttachments
	})
	t.Logf("%d libraries probed after %v", maxAttachments, time.Since(begin))
	p, library := oddOf(t, somebody)
	eventually(t, "the neighbour's probes", func() bool { return tr.probes(library) })
	p.do(fmt.Sprintf("same %d", calls), "same")
	if n := count(tr.drain(), func(e *event.Event) bool { return int(e.Proc.PID) == p.pid() && e.Size == 400 }); n != calls {
		t.Errorf("%d of the neighbour's %d calls are seen", n, calls)
	}
	var unseen []NotSeen
	eventually(t, "word of the processes that are not seen", func() bool {
		unseen = slices.DeleteFunc(tr.NotSeen(), func(n NotSeen) bool { return n.User != nobody })
		return len(unseen) > 0
	})
	if tr.counter("libraries_evicted") == 0 {
		t.Error("nothing is counted")
	}
	for _, n := range tr.NotSeen() {
		if n.User == somebody {
			t.Errorf("the neighbour: %v", n)
		}
	}
	if len(unseen) != 1 || unseen[0].Processes == 0 || unseen[0].Processes > 19 || unseen[0].Why != string(noSlot) {
		t.Errorf("not seen: %v", unseen)
	}
	for n := 0; ; n++ {
		select {
		case text := <-tr.warnings:
			if !strings.Contains(text, fmt.Sprintf("user %d", nobody)) || n >= maxWarnings {
				t.Errorf("warning %d: %s", n, text)
			}
			continue
		default:
		}
		if n == 0 {
			t.Error("no warning")
		}
		break
	}
	begin = time.Now()
	if err := tr.libs.closeAll(); err != nil {
		t.Error(err)
	}
	t.Logf("all probes off after %v", time.Since(begin))
}

// A user who maps and unmaps without a pause keeps the kernel from telling of another's
// library. It is found all the same.
func TestMappingsLost(t *testing.T) {
	tenants.ByUser(t)
	tr := openTrace(t, Options{All: true, Follow: true})
	bin := filepath.Join(open2all(t), "remapper")
	compile(t, bin, "remapper.c")
	for range runtime.NumCPU() {
		spawn(t, as(nobody, bin, differentLibraries(t, open2all(t), 1)[0]), "up")
	}
	eventually(t, "mappings to be lost", func() bool { return tr.counter("mappings_lost") > 1000 })
	for range 3 {
		p, library := oddOf(t, somebody)
		eventually(t, "the neighbour's probes", func() bool { return tr.probes(library) })
		p.do(fmt.Sprintf("same %d", calls), "same")
		if n := count(tr.drain(), func(e *event.Event) bool { return int(e.Proc.PID) == p.pid() && e.Size == 400 }); n != calls {
			t.Errorf("%d of the neighbour's %d calls are seen", n, calls)
		}
	}
}

// A process of which mappings were lost, and whose libraries find no room, is said not to be seen.
func TestMappingsLostWithoutRoom(t *testing.T) {
	tr := openTrace(t, Options{attachments: 2}) // of targets alone: nothing else looks at this process
	p := mapAll(t, nobody, 1, differentLibraries(t, open2all(t), 4))
	child, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.pid()))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(child)))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is counted once
		tr.finder.rescanOne(claim{pid: pid, user: nobody, again: true})
	}
	want := []NotSeen{{User: nobody, Why: string(noSlot), Processes: 1}}
	if got := tr.NotSeen(); !slices.Equal(got, want) || tr.counter("libraries_not_probed") != 1 {
		t.Errorf("not seen: %v, counted %d; want %v, 1", got, tr.counter("libraries_not_probed"), want)
	}
}

// Files that never answer, of one user, keep no other user's library from being probed.
func TestFilesThatDoNotAnswer(t *testing.T) {
	tenants.ByUser(t)
	tr := openTrace(t, Options{All: true, Follow: true})
	mapAll(t, nobody, 10, silentFiles(t, 100))
	eventually(t, "files that do not answer to be waited for", func() bool {
		tr.libs.mu.Lock()
		defer tr.libs.mu.Unlock()
		pending := 0
		for _, f := range tr.libs.table {
			if f.pending() {
				pending++
			}
		}
		return pending >= maxOfUser
	})
	p, library := oddOf(t, somebody)
	eventually(t, "the neighbour's probes", func() bool { return tr.probes(library) })
	p.do(fmt.Sprintf("same %d", calls), "same")
	if n := count(tr.drain(), func(e *event.Event) bool { return int(e.Proc.PID) == p.pid() && e.Size == 400 }); n != calls {
		t.Errorf("%d of the neighbour's %d calls are seen", n, calls)
	}
	eventually(t, "word of the processes that are not seen", func() bool {
		return slices.ContainsFunc(tr.NotSeen(), func(n NotSeen) bool { return n.User == nobody && n.Why == string(noAnswer) })
	})
	if n := tr.counter("libraries_not_probed"); n == 0 || n > 100 {
		t.Errorf("%d libraries are counted", n)
	}
}

// A table is one of files that tests fill.
type table struct {
	testing.TB
	*libraries
	now  time.Time
	next int
}

func newTable(tb testing.TB, most int) *table {
	return &table{TB: tb, libraries: newLibraries(&Options{attachments: most}, loss.New(causes), newWarnings(nil)), now: time.Now()}
}

func file(library int) attachKey { return attachKey{id: proc.FileID{Ino: uint64(library)}} }

// maps has a process of a user map a library, by number, and says which library lost its
// probes for it: 0 for none, -1 if there was no room.
func (l *table) maps(pid int, uid uint32, library int) (lost int) {
	l.Helper()
	l.next++
	f, added, old, err := l.claim(file(library), claim{pid: pid, user: uid, at: time.Duration(l.next)})
	if err != nil {
		return -1
	}
	if old != nil {
		lost = int(old.key.id.Ino)
		delete(l.closing, old)
	}
	if added {
		f.attachment = &attachment{}
	}
	l.check()
	return lost
}

// check compares the number of the unseen processes under each bound with the processes.
func (l *table) check() {
	l.Helper()
	n := map[uint32]int{}
	for _, p := range l.unseen.processes {
		n[p.under]++
	}
	if !maps.Equal(n, l.unseen.of) {
		l.Fatalf("%v unseen, want %v", l.unseen.of, n)
	}
	if len(l.table) > l.max {
		l.Fatalf("%d libraries", len(l.table))
	}
}

func (l *table) want(what string, got, want int) {
	l.Helper()
	if got != want {
		l.Errorf("%s: library %d goes, want %d", what, got, want)
	}
}

// Unseen processes of more users than there is room for count as others'.
func TestUnseenIsBounded(t *testing.T) {
	l := newTable(t, 1)
	for i := range 4 * maxUnseenUsers {
		l.unseen.add(1+i, uint32(1+i), noSlot, 1, l.now)
		l.check()
	}
	if n := len(l.unseen.of); n != 1+maxUnseenUsers || l.unseen.of[others] != maxUnseen {
		t.Errorf("%d users, %d processes of others", n, l.unseen.of[others])
	}
}

// What nobody maps any more makes room first, what is idle for longest before the rest.
func TestIdleMakesRoom(t *testing.T) {
	l := newTable(t, 8)
	for i := 1; i <= 8; i++ {
		l.maps(i, 1, i)
	}
	l.inherit(7, 999, 1000)
	for _, pid := range []int{3, 7, 1, 2} {
		l.now = l.now.Add(time.Second)
		l.leave(pid, 1000, l.now)
		l.check()
	}
	for i, want := range []int{3, 1, 2} {
		l.want("idle", l.maps(100+i, 1, 100+i), want)
	}
	if l.table[file(7)] == nil {
		t.Error("the library of a child went")
	}
}

// A user who needs room takes it from the one who has most, down to an equal share, and
// then from the oldest of his own.
func TestShares(t *testing.T) {
	l := newTable(t, 12)
	for i := 1; i <= 12; i++ { // two users: 9 and 3
		l.maps(i, 1+uint32(i-1)/9, i)
	}
	for i, want := range []int{1, 2, 3, 4} { // a third comes
		l.want("a newcomer", l.maps(100+i, 3, 100+i), want)
	}
	// 5, 3 and 4 now.
	l.want("an equal", l.maps(104, 3, 104), 100)
	l.want("whoever has most", l.maps(20, 1, 20), 5)
	l.want("whoever has least", l.maps(30, 2, 30), 6)
	if got, _ := l.shares(); got[1] != 4 || got[2] != 4 || got[3] != 4 {
		t.Errorf("shares %v", got)
	}
	// A claim that is made again takes none of its own user's.
	if old := l.oldest(claim{pid: 200, user: 2, again: true}); old != nil {
		t.Errorf("a claim that is made again takes %v", old.key)
	}
	var unseen []string
	for _, n := range l.notSeen() {
		unseen = append(unseen, n.String())
	}
	if want := []string{"6 processes of user 1: no free slot for a library", "1 process of user 3: no free slot for a library"}; !slices.Equal(unseen, want) {
		t.Errorf("%q, want %q", unseen, want)
	}
	for pid := range 300 {
		l.leave(pid, 1<<40, l.now)
	}
	l.check()
	if n := l.notSeen(); len(n) != 0 {
		t.Errorf("ended processes are not seen: %v", n)
	}
}

// Of a user's processes the one with the most libraries gives the first: a program that
// maps a thousand takes none from its user's others.
func TestSharesOfProcesses(t *testing.T) {
	l := newTable(t, 10)
	l.maps(1, 1, 1)
	l.maps(2, 1, 2)
	for i := range 8 {
		l.maps(3, 1, 10+i)
	}
	for i := range 20 {
		l.want("a process with many", l.maps(3, 1, 18+i), 10+i)
	}
	l.want("a newcomer", l.maps(4, 1, 100), 30)
	for _, library := range []int{1, 2, 100} {
		if l.table[file(library)] == nil {
			t.Errorf("library %d went", library)
		}
	}
}

// Who maps another's library shares it, and cannot have it taken away.
func TestSharesOfOthersLibraries(t *testing.T) {
	l := newTable(t, 6)
	l.maps(1, 1, 1) // the oldest of all
	for i := range 5 {
		l.maps(2, 2, 10+i)
	}
	l.maps(2, 2, 1)
	l.want("a newcomer", l.maps(3, 3, 100), 10)
	l.want("his own", l.maps(2, 2, 20), 11)
	if l.table[file(1)] == nil {
		t.Error("the neighbour's library went")
	}
	// What stays for good is nobody's.
	l = newTable(t, 2)
	l.maps(0, 0, 1)
	l.maps(1, 1, 2)
	l.want("his own", l.maps(1, 1, 3), 2)
	l.want("no room", l.maps(2, 2, 4), -1)
}

// Whoever has probes come off all the time does not keep others from making room.
func TestSharesOfComingOff(t *testing.T) {
	l := newTable(t, 10)
	for i := range 10 {
		l.maps(1, 1, 1+i)
	}
	removed := 0
	for ; ; removed++ {
		f, _, _, err := l.claim(file(1000+removed), claim{pid: 1, user: 1, at: 1})
		if err != nil {
			break
		}
		f.attachment = &attachment{}
	}
	if removed != maxUserClosing {
		t.Errorf("%d come off for one user, want %d", removed, maxUserClosing)
	}
	if l.maps(2, 2, 1) <= 0 {
		t.Error("there is no room for another")
	}
}

// A file without functions to probe is not opened again for a while, and makes room before others.
func TestUselessFiles(t *testing.T) {
	l := newTable(t, 2)
	f, _, _, _ := l.claim(file(1), claim{pid: 1, user: 1})
	f.err, f.idle = ErrNoSymbols, l.now
	clear(f.mappers)
	if f, added, _, err := l.claim(file(1), claim{pid: 2, user: 2}); f != nil || added || err != nil {
		t.Errorf("a useless file is opened again: %v, %t, %v", f, added, err)
	}
	l.maps(1, 1, 2)
	l.want("a newcomer", l.maps(1, 1, 3), 0)
	if l.table[file(1)] != nil || l.table[file(2)] == nil {
		t.Error("a library went before a useless file")
	}
	if out := l.unused(l.now.Add(linger), &rounds.Rounds[int]{}); len(out) != 0 || len(l.table) != 2 {
		t.Errorf("%d libraries went, and %d stay", len(out), len(l.table))
	}
}

// Warnings about one user end, and come back later; those about others go on.
func TestWarningsOfUsers(t *testing.T) {
	var said []string
	w := newWarnings(func(s string) { said = append(said, s) })
	for i := range 1000 {
		w.addFor(1, fmt.Sprintf("library %d", i))
		w.addFor(2, "always the same")
	}
	if len(said) != maxWarnings+1 || said[1] != "always the same" || !strings.Contains(said[maxWarnings], "left out") {
		t.Errorf("%d warnings: %q", len(said), said)
	}
	var b budget
	now := time.Now()
	take := func(at time.Duration) (n int) {
		for {
			if ok, _ := b.spend(now.Add(at)); !ok {
				return n
			}
			n++
		}
	}
	for _, c := range []struct {
		at   time.Duration
		want int
	}{{0, maxWarnings}, {warnInterval - 1, 0}, {warnInterval, 1}, {warnInterval, 0}, {3*warnInterval + 1, 2}, {100 * warnInterval, maxWarnings}} {
		if n := take(c.at); n != c.want {
			t.Errorf("after %v: %d warnings, want %d", c.at, n, c.want)
		}
	}
	if b.full(now.Add(101*warnInterval)) || !b.full(now.Add(200*warnInterval)) {
		t.Error("a budget is full at the wrong time")
	}
}
