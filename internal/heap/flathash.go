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

// slots appends the entries of the table that words begin with, none if they begin with no table. Each entry has
// width words: first how far it lies from its own slot, then its key, and last its value. In a set the key is
// the value.
func (r *allocatorReader) slots(out []entry, words []uint64, width int) []entry {
	if !isTable(words) || words[3] == 0 {
		return out
	}
	n := int(words[1]) + int(words[2]>>8&0xff) // the last place only ends the table, and has any words
	if n > r.left {
		r.gone++
		return out
	}
	r.left -= n
	if out == nil {
		out = room[entry](&r.arena, int(min(words[3], maxGPUBlocks)))[:0]
	}
	at := words[0]
	for n > 0 && r.mem.tick() {
		piece := min(n, blockSize/8/width)
		b := r.mem.bytes(at, piece*width*8)
		for ; len(b) >= width*8; b = b[width*8:] {
			if value := word(b[8*(width-1):]); int8(b[0]) >= 0 && value != 0 {
				out = append(out, entry{word(b[8:]), word(b[8*(width-2):]), value})
			}
		}
		at += uint64(piece * width * 8)
		n -= piece
	}
	return out
}
