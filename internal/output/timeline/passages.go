package timeline

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

// A Passage is text and tables that the page shows as they are.
type Passage struct {
	Title  string          `json:"title"`
	Says   []string        `json:"says"` // paragraphs
	Tables []table.Listing `json:"tables,omitempty"`
	At     time.Duration   `json:"at,omitempty"` // of which moment it is, since the trace began, 0 for none
	// Again is set for a request that was refused again, so long after At, on a GPU.
	Again time.Duration `json:"-"`
	GPU   string        `json:"-"`
}

// A Comparison is with another run.
type Comparison struct {
	Title string // of the page: it names both runs
	Passage
}

// compare adds a comparison.
func (d *document) compare(c *Comparison) {
	d.meta.Title = web.Clean(c.Title)
	p := clean(c.Passage)
	d.meta.Compared = &p
}

// failed adds what is said of a request that failed, and a mark where it failed again.
func (d *document) failed(p Passage) {
	d.meta.Failures = append(d.meta.Failures, clean(p))
	if p.Again > 0 {
		d.meta.Marks = append(d.meta.Marks, mark{Time: uint64(p.At + p.Again), Kind: "oom", Text: "refused again: memory had been given back", GPU: p.GPU})
	}
}

// clean returns a passage as pages have it.
func clean(p Passage) Passage {
	p.Title = web.Clean(p.Title)
	for i, text := range p.Says {
		p.Says[i] = web.Clean(text)
	}
	for _, t := range p.Tables {
		for _, row := range t.Cells {
			for i, text := range row {
				row[i] = web.Clean(text)
			}
		}
	}
	return p
}
