package html

// Elements, of what is in them.
var (
	A        = contains("a")
	Article  = contains("article")
	B        = contains("b")
	Body     = contains("body")
	Button   = contains("button")
	Code     = contains("code")
	Details  = contains("details")
	Div      = contains("div")
	Footer   = contains("footer")
	H1       = contains("h1")
	H2       = contains("h2")
	H3       = contains("h3")
	Head     = contains("head")
	Header   = contains("header")
	Label    = contains("label")
	Li       = contains("li")
	NoScript = contains("noscript")
	Ol       = contains("ol")
	Option   = contains("option")
	P        = contains("p")
	Pre      = contains("pre")
	Rect     = contains("rect")
	Section  = contains("section")
	Select   = contains("select")
	Span     = contains("span")
	Summary  = contains("summary")
	SVG      = contains("svg")
	Table    = contains("table")
	TBody    = contains("tbody")
	Td       = contains("td")
	Th       = contains("th")
	THead    = contains("thead")
	Title    = contains("title")
	Tr       = contains("tr")
	Ul       = contains("ul")

	// These have attributes alone.
	Input = void("input")
	Link  = void("link")
	Meta  = void("meta")
)

// Attributes, of their values.
var (
	AriaDescribedBy     = valued("aria-describedby")
	AriaLabel           = valued("aria-label")
	AriaLive            = valued("aria-live")
	Charset             = valued("charset")
	Class               = valued("class")
	ColSpan             = valued("colspan")
	Content             = valued("content")
	DataKey             = valued("data-key")
	Height              = valued("height")
	ID                  = valued("id")
	Lang                = valued("lang")
	MaxLength           = valued("maxlength")
	Method              = valued("method")
	Name                = valued("name")
	PreserveAspectRatio = valued("preserveAspectRatio")
	Rel                 = valued("rel")
	Role                = valued("role")
	Scope               = valued("scope")
	TabIndex            = valued("tabindex")
	Tooltip             = valued("title")
	Type                = valued("type")
	Value               = valued("value")
	ViewBox             = valued("viewBox")
	Width               = valued("width")
	X                   = valued("x")
	Y                   = valued("y")

	Action = leads("action")
	Href   = leads("href")
)

// Hidden is an attribute that an element has, or not.
const Hidden = flag("hidden")

// HTML is a whole page.
func HTML(inside ...Node) Node { return group{doctype{}, contains("html")(inside...)} }

// Script is a script that runs once the page is read.
func Script(from Address) Node { return contains("script")(leads("src")(from), flag("defer")) }

// None of these is inlined: each name would have its own copy of what it returns.

//go:noinline
func contains(name string) func(...Node) Node {
	return func(inside ...Node) Node { return &element{name: name, inside: inside} }
}

//go:noinline
func void(name string) func(...Node) Node {
	return func(attributes ...Node) Node { return &element{name: name, void: true, inside: attributes} }
}

//go:noinline
func valued(name string) func(string) Node {
	return func(value string) Node { return attribute{name, value} }
}

//go:noinline
func leads(name string) func(Address) Node {
	return func(to Address) Node { return attribute{name, string(to)} }
}
