// Package alert watches sums of a trace, and reports when a rule about them becomes true:
//
//	oom                            a process ran out of memory
//	leak                           stacks of a process leak, as trace --leaks finds them
//	WHAT > AMOUNT [for TIME]       it is more, for as long as TIME
//
// WHAT is gpu.used, what NVML says that is used of a GPU; process.live, what a process allocated
// and did not free; or process.held, that and what the driver holds for it. AMOUNT is a size such
// as 20GiB, or a percentage of the GPU's memory, or of that of all GPUs that a process is on.
//
// A rule reports each GPU or process once when it becomes true. It reports the end once, when the
// value has been below the limit by a twentieth for five minutes, or not known for that long: so
// a value that swings about the limit is reported once. The end of a process is reported at once,
// and the end of running out of memory after ten minutes without.
package alert

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
)

// A Rule is a condition to watch for. Parse makes it; the zero Rule is not valid.
type Rule struct {
	what    *quantity     // nil for oom
	percent float64       // of a whole, 0 for none
	bytes   int64         // else
	window  time.Duration // how long it must be so
	written string
}

const oom = "oom"

// maxRule bounds a rule, in bytes.
const maxRule = 200

const (
	minWindow = time.Second
	maxWindow = 168 * time.Hour
)

var syntax = regexp.MustCompile(`^ *(?:(oom|leak)|([a-z.]+) *> *([0-9.]+) *([A-Za-z]+|%)(?: *for +([0-9a-z.]+))?) *$`)

// Parse returns the rule that a text is. The error says what would be one.
func Parse(text string) (Rule, error) {
	r, err := parse(text)
	if err != nil {
		return Rule{}, fmt.Errorf("alert %q: %w", text[:min(len(text), maxRule)], err)
	}
	return r, nil
}

func parse(text string) (r Rule, err error) {
	var words []string
	if len(text) <= maxRule {
		words = syntax.FindStringSubmatch(text)
	}
	if words == nil {
		return r, errors.New(`give oom, leak, or a limit such as "gpu.used > 90%" or "process.live > 20GiB for 5m"`)
	}
	r.written = words[1]
	if r.written == oom {
		return r, nil
	}
	name := words[1] + words[2]
	i := slices.IndexFunc(quantities, func(q quantity) bool { return q.name == name })
	if i < 0 || name == leakName && words[1] == "" {
		return r, fmt.Errorf("%s is none of gpu.used, process.live and process.held", name)
	}
	if r.what = &quantities[i]; name == leakName {
		return r, nil
	}
	amount := words[3] + words[4]
	if words[4] == "%" {
		if r.percent, err = strconv.ParseFloat(words[3], 64); err != nil || r.percent <= 0 || r.percent > 100 {
			return r, fmt.Errorf("%s is no percentage from 0 to 100", amount)
		}
	} else if r.bytes, err = bytefmt.Parse(amount); err != nil {
		return r, fmt.Errorf("%s: %w", amount, err)
	}
	r.written = fmt.Sprintf("%s > %s", name, amount)
	if words[5] == "" {
		return r, nil
	}
	if r.window, err = time.ParseDuration(words[5]); err != nil || r.window < minWindow || r.window > maxWindow {
		return r, fmt.Errorf("%s is no time from 1s to 168h, such as 90s or 10m", words[5])
	}
	r.written += " for " + bytefmt.Duration(r.window)
	return r, nil
}

// String returns the rule as Parse takes it.
func (r Rule) String() string {
	if r.what == nil {
		return oom
	}
	return r.written
}

// limit returns the value beyond which the rule is true, if the whole is so much.
func (r *Rule) limit(whole int64) int64 {
	if r.percent > 0 {
		return int64(float64(whole) * r.percent / 100)
	}
	return r.bytes
}
