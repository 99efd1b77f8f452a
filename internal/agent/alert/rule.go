// Package alert watches sums of a trace, and tells when they are as nobody wants them.
//
// What is watched for is said by rules:
//
//	RULE     = WHAT OP AMOUNT [ "for" TIME ]     it is so, for as long as TIME
//	         | WHAT "grows" AMOUNT "in" TIME     it is more by AMOUNT than TIME ago
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
// A rule tells of each GPU, process, owner or cause once, when it becomes true, and once
// when it is true no more by a twentieth of AMOUNT, so that what hovers at a limit is told
// once; of running out of memory, when there was none for ten minutes. What is younger than
// TIME has not grown yet; how long ago it is compared with is so to a thirtieth of TIME.
package alert

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A Rule is what to watch for. The zero Rule is none: see Parse.
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
		return Rule{}, &SyntaxError{strings.ToValidUTF8(text[:min(len(text), 40)], "?") + "...", 1, fmt.Sprintf("more than %d bytes, or no UTF-8", maxRule)}
	}
	p := parser{text: text}
	r := p.rule()
	if p.failed == nil && p.word() != "" {
		p.fail("nothing more is expected")
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
	case r.grows:
		return fmt.Sprintf("%s grows %s in %s", r.what.name, r.written, short(r.window))
	case r.window > 0:
		return fmt.Sprintf("%s %s %s for %s", r.what.name, r.op, r.written, short(r.window))
	}
	return fmt.Sprintf("%s %s %s", r.what.name, r.op, r.written)
}

// short writes d without units that are zero.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
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
// a character of none of these.
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
		p.fail("%s, or %s, is expected", strings.Join(names, ", "), oom)
		return r
	}
	r.what = &quantities[i]
	switch word := p.word(); word {
	case ">", ">=", "<", "<=":
		r.op = word
		p.amount(&r)
		before := *p
		if p.word() == "for" {
			r.window = p.time()
		} else {
			before.failed = p.failed
			*p = before
		}
	case "grows":
		r.grows = true
		p.amount(&r)
		if p.failed == nil && r.number == 0 {
			p.fail("it grows by nothing")
		}
		if p.word() != "in" {
			p.fail(`"in", and a time, is expected`)
		}
		r.window = p.time()
	default:
		p.fail(`>, >=, <, <= or "grows" is expected`)
	}
	return r
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
		p.fail("%s has no whole that this could be a percentage of", r.what.name)
	case r.unit == percent && n > 100:
		p.fail("that is more than all")
	case r.unit == percent:
	case i < 0:
		p.fail("a unit is expected: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB or %%")
	case n*units[i].bytes > maxAmount:
		p.fail("that is more than there can be")
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
