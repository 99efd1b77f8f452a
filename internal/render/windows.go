package render

import (
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Windows says of which windows figures of tensors are, such as "12 windows of 2s, one each 1m".
func Windows(w *snapshot.TensorWindows) string {
	windows := " windows of "
	if w.Count == 1 {
		windows = " window of "
	}
	return bytefmt.Count(w.Count) + windows + brief(w.Length) + ", one each " + brief(w.Every)
}

// brief leaves out what is zero at the end.
func brief(d time.Duration) string {
	text := d.String()
	for _, zero := range [...]string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}
