package export

import (
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

func TestAccounts(t *testing.T) {
	lines := []snapshot.AccountLine{{Name: "allocations", Bytes: 96}, {Name: "[pool]", Bytes: 32, Note: "a note"}}
	for _, c := range []struct {
		account snapshot.Account
		heading string
		share   string // of the first line
	}{
		{snapshot.Account{}, "not known", "-"},
		{snapshot.Account{Driver: 128, DriverKnown: true}, "not known", "-"},
		{snapshot.Account{Known: true}, "128 B", "75.0%"},
		{snapshot.Account{Known: true, Driver: 130, DriverKnown: true}, "128 B", "75.0%"}, // of another moment
		{snapshot.Account{Known: true, Driver: 128, DriverKnown: true, Compared: true}, "128 B, as nvidia-smi says", "75.0%"},
		{snapshot.Account{Known: true, Driver: 120, DriverKnown: true, Compared: true, Difference: -8}, "128 B; nvidia-smi says 8 B less", "75.0%"},
		{snapshot.Account{Known: true, Driver: 130, DriverKnown: true, Compared: true, Difference: 2}, "128 B; nvidia-smi says 2 B more, which was not seen", "75.0%"},
		{snapshot.Account{Known: true, Driver: 130, DriverKnown: true, Inferred: true}, "128 B (the whole GPU's)", "75.0%"},
	} {
		c.account.Process, c.account.PID, c.account.GPU, c.account.Total, c.account.Lines = "p", 7, "0", 128, lines
		var b strings.Builder
		page := render.NewPage(&b, 0, false)
		accounts(page, []snapshot.Account{c.account}, "")
		page.Flush("")
		got := strings.Split(b.String(), "\n")
		if want := "p (7) on GPU 0: " + c.heading; got[0] != want {
			t.Errorf("heading %q, want %q", got[0], want)
		}
		if want := []string{"96", "B", c.share, "allocations"}; strings.Join(strings.Fields(got[2]), " ") != strings.Join(want, " ") || strings.TrimSpace(got[4]) != "a note" {
			t.Errorf("%s: lines %q", c.heading, got)
		}
	}
}
