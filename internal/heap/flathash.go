package heap

// The tables of PyTorch's allocator are of ska::flat_hash_map. One has four words: its entries, slots minus
// one, a shift and the most look-ups and how full it may be, and how many elements there are.
const (
	tableWords = 4
	halfFull   = 0x3f000000 // 0.5, as a 32-bit number
)

// isTable reports whether words begin with a table.
func isTable(words []uint64) bool {
	return len(words) >= tableWords && words[0] != 0 && words[0]&7 == 0 && words[2]>>32 == halfFull &&
		words[1]&(words[1]+1) == 0 && words[1] < maxTableSlots && words[3] <= words[1]+1
}

// longestRun returns where most tables lie side by side, and how many.
func longestRun(words []uint64) (first, n int) {
	for i := 0; i < len(words); {
		run := 0
		for isTable(words[min(i+run*tableWords, len(words)):]) {
			run++
		}
		if run > n {
			first, n = i, run
		}
		i += max(1, run*tableWords)
	}
	return first, n
}

// An entry is what a table has for one key, which may be of two words.
type entry struct{ key, second, value uint64 }

// slots returns the entries of the table that words begin with, none if they begin with no table. Each entry has
// width words: first how far it lies from its own slot, then its key, and last its value. In a set the key is
// the value.
func (r *allocatorReader) slots(words []uint64, width int) (out []entry) {
	if !isTable(words) || words[3] == 0 {
		return nil
	}
	n := int(words[1]) + int(words[2]>>8&0xff) // the last place only ends the table, and has any words
	if n > r.left {
		r.gone++
		return nil
	}
	r.left -= n
	at := words[0]
	for n > 0 && r.mem.tick() {
		piece := min(n, maxPiece/8/8/width)
		w := r.mem.words(at, piece*width)
		for ; len(w) >= width; w = w[width:] {
			if int8(w[0]) >= 0 && w[width-1] != 0 {
				out = append(out, entry{w[1], w[width-2], w[width-1]})
			}
		}
		at += uint64(piece * width * 8)
		n -= piece
	}
	return out
}
