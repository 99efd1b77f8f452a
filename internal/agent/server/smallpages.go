package server

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/output/html"
)

// reportPage is one out-of-memory report.
func reportPage(in *incident) html.Node {
	return document(fmt.Sprintf("Out of GPU memory: report %d", in.Number), nil,
		html.P(link("/", "GPU memory")),
		html.Pre(html.Class("report"), html.Text(in.Report)),
	)
}

// A profileLink leads to a profile, and says what it is of.
type profileLink struct {
	to   html.Address
	text string
}

// profilesPage is which profiles there are.
func profilesPage(all []profileLink) html.Node {
	const name = "/debug/pprof/"
	line := func(p profileLink) html.Node { return html.Li(link(p.to, string(p.to)), html.Text(" "+p.text)) }
	return document(name, nil, html.Class("small"), html.H1(html.Text(name)), html.Ul(html.Each(all, line)))
}

// loginPage asks for the token; without one to give it says who may read.
func loginPage(wrong, closed bool) html.Node {
	ask := loginForm(wrong)
	if closed {
		ask = html.P(html.Text("Without "), tokenFlag(), html.Text(" only root, and the user that the agent runs as, may read, on the agent's own machine."))
	}
	return document("gpumemtrace", nil, html.Class("small"), html.H1(html.Text("gpumemtrace")), ask)
}

func loginForm(wrong bool) html.Node {
	return html.Form(html.Method("post"), html.Action("/login"),
		html.P(html.Label(html.For("token"), html.Text("The token, which is in the file that the agent was given as "), tokenFlag(), html.Text(":"))),
		html.P(
			html.Input(html.Name("user"), html.AutoComplete("username"), html.Value("gpumemtrace"), html.Hidden), // for what keeps passwords
			html.Input(html.ID("token"), html.Name("token"), html.Type("password"), html.AutoComplete("current-password"), html.Required, html.AutoFocus, html.MaxLength("1024")),
			html.Text(" "), html.Button(html.Text("Show GPU memory")),
		),
		html.If(wrong, html.P(html.Role("alert"), html.Class("wrong"), html.Text("That is not the token."))),
	)
}

func tokenFlag() html.Node { return html.Code(html.Text("--token-file")) }
