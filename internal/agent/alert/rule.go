// Package alert watches sums of a trace, and reports when a rule about them becomes true.
//
// The syntax of rules:
//
//	RULE     = WHAT OP AMOUNT [ "for" TIME ]     it is so, for as long as TIME
//	         | WHAT "grows" AMOUNT "in" TIME     it is more by AMOUNT than TIME ago
//	         | "leak" [ ">" AMOUNT ] [ "for" TIME ]
//	                                             stacks of a process leak, as trace --leaks finds
//	                                             them, and grew by more than AMOUNT
//	         | "oom"                             a call fails for want of memory
//	WHAT     = "gpu.used" | "gpu.free" | "gpu.held" | "residual"     of each GPU
//	         | "process.live" | "process.held"                       of each process
//	         | "owner.live"                                          of each owner
//	         | "loss"                                                of each cause
//	OP       = ">" | ">=" | "<" | "<="
//	AMOUNT   = NUMBER UNIT, or for loss NUMBER
//	UNIT     = "B" | "KiB" | "MiB" | "GiB" | "TiB" | "KB" | "MB" | "GB" | "TB" | "%"
//	TIME     = 1s to 168h, as Go writes it: "90s", "10m", "1h30m"
//
// A percentage is of the GPU's memory, or of that of all GPUs that a process is on; of an
// owner there is none. Used and free are as NVML says, held is what traced processes hold
// with what the driver holds for them, residual what of used they do not, live what was
// allocated and not freed.
//
// A rule reports each GPU, process, owner or cause once when it becomes true. It reports the
// end once, when the value has been past the limit by a twentieth of AMOUNT for five minutes,
// or not known for that long: so a value that swings about the limit is reported once. The
// end of a process is reported at once, and the end of running out of memory after ten
// minutes without.
//
// A value that rises once, as when a program starts, does not grow. TIME is divided into five
// parts, and the lowest value of each part counts. The growth is at most five times the median
// rise of these parts, so a value that rises in only two of them does not grow. The latest part
// must have risen too, by half of its share. A process, GPU or owner that has held memory for
// less than TIME has not grown yet. A rise of a GPU does not count while a process on it is
// younger than half of TIME, and a rise of an owner while any process is. A loss grows by any
// rise. A process does not leak while its memory rises by a tenth or more within a minute.
package alert

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
)

// A Rule is a condition to watch for. Parse makes it; the zero Rule is not valid.
type Rule struct {
	what    *quantity // nil for oom
	grows   bool
	op      string
	number  float64
	unit    string
	window  time.Duration // of growth, or how long it must be so
	written string        // number and unit
}

const oom = "oom"

// maxRule bounds a rule, in bytes.
const maxRule = 200

// A SyntaxError says what of a rule is not one.
type SyntaxError struct {
	Rule   string
	Column int // counted in characters from 1 on
	Reason string
}

// Error says where it is.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("alert %q, column %d: %s", e.Rule, e.Column, e.Reason)
}

// Parse returns the rule that a text is, or a *SyntaxError.
func Parse(text string) (Rule, error) {
	if len(text) > maxRule || !utf8.ValidString(text) {
		return Rule{}, &SyntaxError{strings.ToValidUTF8(text[:min(len(text), 40)], "?") + "...", 1, fmt.Sprintf("longer than %d bytes, or not valid UTF-8", maxRule)}
	}
	p := parser{text: text}
	r := p.rule()
	if p.failed == nil && p.word() != "" {
		p.fail("expected the end of the rule")
	}
	if p.failed != nil {
		return Rule{}, p.failed
	}
	return r, nil
}

// String returns the rule as Parse takes it.
func (r Rule) String() string {
	switch {
	case r.what == nil:
		return oom
	case r.written == "" && r.window > 0: // a leak
		return fmt.Sprintf("%s for %s", r.what.name, bytefmt.Duration(r.window))
	case r.written == "":
		return r.what.name
	case r.grows:
		return fmt.Sprintf("%s grows %s in %s", r.what.name, r.written, bytefmt.Duration(r.window))
	case r.window > 0:
		return fmt.Sprintf("%s %s %s for %s", r.what.name, r.op, r.written, bytefmt.Duration(r.window))
	}
	return fmt.Sprintf("%s %s %s", r.what.name, r.op, r.written)
}

// units are of bytes.
var units = []struct {
	name  string
	bytes float64
}{
	{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
}

const percent = "%"

const (
	minWindow = time.Second
	maxWindow = 168 * time.Hour
	maxAmount = 1 << 60
)

// amount returns what the rule's is, of a whole if it is a percentage.
func (r *Rule) amount(whole int64) int64 {
	if r.unit == percent {
		return int64(float64(whole) * r.number / 100)
	}
	for _, u := range units {
		if u.name == r.unit {
			return int64(r.number * u.bytes)
		}
	}
	return int64(r.number)
}

// A parser takes a text apart, word by word.
type parser struct {
	text   string
	at, to int // the last word
	failed *SyntaxError
}

// fail says what is wrong with the last word. The first that is wrong counts.
func (p *parser) fail(format string, args ...any) {
	if p.failed == nil {
		p.failed = &SyntaxError{p.text, 1 + utf8.RuneCountInString(p.text[:p.at]), fmt.Sprintf(format, args...)}
	}
}

// word returns the next word, "" at the end: letters with dots, a number, an operator, or
// any other single character.
func (p *parser) word() string {
	p.at = p.to
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
	p.to = p.at
	rest := p.text[p.at:]
	if rest == "" {
		return ""
	}
	for _, of := range []func(byte) bool{
		func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' },
		func(c byte) bool { return c >= '0' && c <= '9' || c == '.' },
		func(c byte) bool { return c == '<' || c == '>' || c == '=' },
	} {
		n := 0
		for n < len(rest) && of(rest[n]) {
			n++
		}
		if n > 0 {
			p.to += n
			return rest[:n]
		}
	}
	_, n := utf8.DecodeRuneInString(rest)
	p.to += n
	return rest[:n]
}

func (p *parser) rule() (r Rule) {
	word := p.word()
	if word == oom {
		return r
	}
	i := slices.IndexFunc(quantities, func(q quantity) bool { return q.name == word })
	if i < 0 {
		names := make([]string, len(quantities))
		for i := range quantities {
			names[i] = quantities[i].name
		}
		p.fail("expected %s or %s", strings.Join(names, ", "), oom)
		return r
	}
	r.what = &quantities[i]
	before := *p
	word = p.word()
	if r.what.name == leakName {
		r.op, r.unit = ">", "B"
		if word != ">" {
			*p = before
			p.hold(&r)
			return r
		}
	}
	switch word {
	case ">", ">=", "<", "<=":
		r.op = word
		p.amount(&r)
		p.hold(&r)
	case "grows":
		r.grows = true
		p.amount(&r)
		if p.failed == nil && r.number == 0 {
			p.fail("the growth must be more than 0")
		}
		if p.word() != "in" {
			p.fail(`expected "in" and a time`)
		}
		r.window = p.time()
	default:
		p.fail(`>, >=, <, <= or "grows" is expected`)
	}
	return r
}

// hold takes for how long it must be so, if the rule says that.
func (p *parser) hold(r *Rule) {
	before := *p
	if p.word() == "for" {
		r.window = p.time()
		return
	}
	before.failed = p.failed
	*p = before
}

// amount takes a number with its unit.
func (p *parser) amount(r *Rule) {
	number := p.word()
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || len(number) > 20 || number[0] == '.' || number[len(number)-1] == '.' {
		p.fail("a number is expected")
		return
	}
	r.number, r.written = n, number
	if r.what.counts {
		if n != math.Trunc(n) || n > maxAmount {
			p.fail("a whole number is expected")
		}
		return
	}
	r.unit = p.word()
	r.written += r.unit
	switch i := slices.IndexFunc(units, func(u struct {
		name  string
		bytes float64
	}) bool {
		return u.name == r.unit
	}); {
	case r.unit == percent && !r.what.shares:
		p.fail("%s cannot be given as a percentage", r.what.name)
	case r.unit == percent && n > 100:
		p.fail("a percentage can be at most 100")
	case r.unit == percent:
	case i < 0:
		p.fail("a unit is expected: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB or %%")
	case n*units[i].bytes > maxAmount:
		p.fail("the amount is too large")
	}
}

// time takes a duration.
func (p *parser) time() time.Duration {
	p.at = p.to
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
	word, _, _ := strings.Cut(p.text[p.at:], " ")
	p.to = p.at + len(word)
	d, err := time.ParseDuration(word)
	if err != nil || d < minWindow || d > maxWindow || d%time.Millisecond != 0 {
		p.fail("a time from 1s to 168h is expected, such as 90s, 10m or 1h30m")
	}
	return d
}
