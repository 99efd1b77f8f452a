package record

// tensorWindow returns the records of one window.
func tensorWindow() []Record {
	w := Window{Length: 2e9, Every: 60e9}
	open := w
	open.Open = true
	return []Record{&Tensors{Window: w}, &Tensors{Time: 1e9, Window: open}, &Tensors{Time: 3e9, Window: w}}
}
