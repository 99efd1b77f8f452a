package export

// Cell returns s as a cell of a CSV file: cleaned, and never a formula.
func Cell(s string) string { return cell(s) }
