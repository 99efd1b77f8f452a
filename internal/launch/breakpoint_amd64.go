package launch

var breakpoint = []byte{0xcc} // int3; the program counter is then one past it
