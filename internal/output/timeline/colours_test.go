package timeline

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// nearest is how far apart two colours are at least, where 1 is from black to white: three times
// what an eye sees side by side.
const nearest = 0.06

// perceived returns a colour, "rgb(1, 2, 3)", in the space of Oklab, in which distances are as
// people see them.
func perceived(t *testing.T, colour string) [3]float64 {
	var rgb [3]float64
	if _, err := fmt.Sscanf(colour, "rgb(%f, %f, %f)", &rgb[0], &rgb[1], &rgb[2]); err != nil {
		t.Fatal(colour, err)
	}
	for i, v := range rgb {
		if v /= 255; v > 0.04045 {
			rgb[i] = math.Pow((v+0.055)/1.055, 2.4)
		} else {
			rgb[i] = v / 12.92
		}
	}
	sum := func(a, b, c float64, of [3]float64) float64 { return a*of[0] + b*of[1] + c*of[2] }
	cones := [3]float64{
		math.Cbrt(sum(0.4122214708, 0.5363325363, 0.0514459929, rgb)), math.Cbrt(sum(0.2119034982, 0.6806995451, 0.1073969566, rgb)), math.Cbrt(sum(0.0883024619, 0.2817188376, 0.6299787005, rgb)),
	}
	return [3]float64{sum(0.2104542553, 0.7936177850, -0.0040720468, cones), sum(1.9779984951, -2.4285922050, 0.4505937099, cones), sum(0.0259040371, 0.7827717662, -0.8086757660, cones)}
}

func distance(a, b [3]float64) float64 {
	return math.Hypot(math.Hypot(a[0]-b[0], a[1]-b[1]), a[2]-b[2])
}

// In each grouping all groups can be told apart. What memory is for, and a category, have one colour
// in all groupings of all recordings, which nothing else has.
func TestColours(t *testing.T) {
	meanings := map[bool]map[string]string{false: {}, true: {}} // names by colours, in light and in dark
	others := map[bool]map[string]bool{false: {}, true: {}}     // colours of other names
	for _, name := range []string{"profiler", "torch_native", "pools", "video", "accelerate", "fsdp", "jax"} {
		html, _, _ := written(t, "../../../test/recordings/"+name+".gmt", whole)
		b := open(t, html, 1300, 900)
		for _, dark := range []bool{false, true} {
			b.Dark(dark)
			b.Until(fmt.Sprintf("matchMedia('(prefers-color-scheme: dark)').matches === %v", dark))
			for _, by := range []string{"cause", "category", "owner", "module", "operator", "process", "stack"} {
				set(b, "group", by)
				var groups map[string]string
				if err := json.Unmarshal([]byte(b.Ask(`JSON.stringify(Object.fromEntries([...document.querySelectorAll("#legend button")].map((e) => [e.childNodes[1].data.trim().replace(/^\[|\]$/g, ""), getComputedStyle(e.firstChild).backgroundColor])))`)), &groups); err != nil {
					t.Fatal(err)
				}
				names := slices.Sorted(maps.Keys(groups))
				for i, x := range names {
					for _, y := range names[:i] {
						if d := distance(perceived(t, groups[x]), perceived(t, groups[y])); d < nearest {
							t.Errorf("%s by %s, dark %v: %q and %q are as good as one colour: %s and %s, %.3f", name, by, dark, x, y, groups[x], groups[y], d)
						}
					}
					is := meanings[dark][groups[x]]
					if strings.HasSuffix(x, " other") || strings.HasSuffix(x, " others") {
						continue
					}
					if by != "cause" && by != "category" && is == "" {
						others[dark][groups[x]] = true
						continue
					}
					if is != "" && is != x {
						t.Errorf("%s by %s, dark %v: %s is both %q and %q", name, by, dark, groups[x], is, x)
					}
					meanings[dark][groups[x]] = x
				}
			}
		}
		b.Quiet()
	}
	for dark, of := range meanings {
		for colour, name := range of {
			if others[dark][colour] {
				t.Errorf("dark %v: %s is %q, and in another grouping something else", dark, colour, name)
			}
		}
		if names := slices.Sorted(maps.Values(of)); len(slices.Compact(slices.Clone(names))) != len(names) || len(names) < 10 {
			t.Errorf("dark %v: a meaning has several colours, or there are few: %q", dark, names)
		}
	}
}
