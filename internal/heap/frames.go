package heap

// A frame is a call that goes on in a thread.
type frame struct {
	vertex vertex
	thread uint64 // as the program identifies it
	depth  int    // calls between it and the thread's outermost
	code   uint64
	line   int
	main   bool // of the first thread of an interpreter
	module bool // the code of a module, not of a function
}

// Bounds of threads and frames.
const (
	maxThreads = 1 << 12
	maxFrames  = 1 << 12 // of a thread
	maxLocals  = 1 << 10
	maxLines   = 1 << 16 // bytes of a line table
)

// threads adds the frames of all threads.
func (r *references) threads(interpreters []uint64) {
	l := r.lay
	for _, interpreter := range interpreters {
		thread := r.mem.word(interpreter + uint64(l.threads))
		for n := 0; thread != 0 && n < maxThreads && r.mem.check(); n++ {
			first := len(r.frames)
			id := r.mem.word(thread + uint64(l.threadID))
			r.ownLocals(thread, id)
			at := r.mem.word(thread + uint64(l.frame))
			if l.cframe >= 0 && at != 0 {
				at = r.mem.word(at + uint64(l.cframe))
			}
			for i := 0; at != 0 && i < maxFrames && r.mem.tick(); i++ {
				r.addFrame(at, id)
				at = r.mem.word(at + uint64(l.previous))
			}
			thread = r.mem.word(thread + uint64(l.nextThread))
			for i := first; i < len(r.frames); i++ {
				r.frames[i].depth = len(r.frames) - 1 - i
				// The newest thread comes first.
				r.frames[i].main = thread == 0
			}
		}
	}
}

// addFrame adds a frame, unless it is none of Python code.
func (r *references) addFrame(at, thread uint64) {
	code := r.mem.word(at+uint64(r.lay.code)) &^ 7
	if !r.py.isCode(code) {
		return
	}
	f := frame{thread: thread, code: code, line: r.py.line(at, code)}
	name := r.py.text(r.mem.word(code + uint64(r.lay.name)))
	f.module = name.s == "<module>"
	if v, ok := r.objects.find(at); ok && r.lay.minor <= 10 {
		f.vertex = v
	} else {
		f.vertex = r.addExtra(extraFrame, at)
	}
	if f.vertex == noVertex {
		r.lost.Add(objectsUnread, 1)
		return
	}
	r.frames = append(r.frames, f)
}

// locals adds the local variables of a frame to the vertex that is read.
func (r *references) locals(at uint64) {
	l := r.lay
	code := r.mem.word(at+uint64(l.code)) &^ 7
	if !r.py.isCode(code) {
		return
	}
	n := 0
	add := func(names uint64) {
		count := r.mem.word(names + 16)
		if names == 0 || count > maxLocals {
			return
		}
		for _, name := range r.mem.words(names+24, int(count)) {
			value := r.mem.word(at+uint64(l.locals)+8*uint64(n)) &^ 7
			if _, ok := r.objects.find(value); ok {
				r.refer(value, label(kindLocal, r.keys.index(name)), true)
			}
			n++
		}
	}
	add(r.mem.word(code + uint64(l.localNames)))
	if l.minor <= 10 {
		add(r.mem.word(code + uint64(l.cellVars)))
		add(r.mem.word(code + uint64(l.freeVars)))
	}
	if l.function != 0 || l.minor == 11 {
		r.refer(r.mem.word(at+uint64(l.function))&^7, label(kindHidden, 0), true)
	}
}

// frameObject adds what a frame object holds.
func (r *references) frameObject(at uint64) {
	const back = 16
	if r.lay.minor <= 10 {
		r.locals(at)
		r.stack(at)
		r.named(at+24, "f_back")
		return
	}
	r.named(at+back, "f_back")
	inner := r.mem.word(at + uint64(r.lay.frameFrame))
	// Else it is a frame of a thread or of a generator, which is read there.
	if inner > at && inner < at+256 {
		r.locals(inner)
	}
}

// generator adds what a generator or a coroutine that waits holds.
func (r *references) generator(at uint64) {
	const executing = 0
	frame := at + uint64(r.lay.generatorFrame)
	if r.lay.minor <= 10 {
		r.named(frame, "gi_frame") // which has the rest
		frame = r.mem.word(frame)
	} else if b := r.mem.bytes(at+uint64(r.lay.generatorState), 1); b != nil && int8(b[0]) < executing {
		r.locals(frame)
		r.stack(frame)
	} else {
		return
	}
	if values := r.values(frame); len(values) > 0 && r.py.typeOf(at).name == "coroutine" {
		r.refer(values[len(values)-1], label(kindName, int(r.py.names.index("cr_await"))), false)
	}
}

// stack adds what a frame that waits has besides its variables.
func (r *references) stack(at uint64) {
	for _, w := range r.values(at) {
		r.refer(w, label(kindHidden, 0), true)
	}
}

// values returns what a frame that waits has besides its variables: last what a coroutine waits for.
func (r *references) values(at uint64) []uint64 {
	l := r.lay
	code := r.mem.word(at+uint64(l.code)) &^ 7
	if l.stacktop == 0 || !r.py.isCode(code) {
		return nil
	}
	n := r.mem.word(r.mem.word(code+uint64(l.localNames)) + 16)
	if l.minor <= 10 {
		n += r.mem.word(r.mem.word(code+uint64(l.cellVars))+16) + r.mem.word(r.mem.word(code+uint64(l.freeVars))+16)
	}
	first, top := at+uint64(l.locals)+8*n, r.mem.word(at+uint64(l.stacktop))
	count := int(int32(top))
	switch {
	case l.minor <= 9:
		count = int(top-first) / 8
	case l.minor > 10:
		count -= int(n)
	}
	if n > maxLocals || count <= 0 || count > maxLocals {
		return nil
	}
	return r.mem.words(first, count)
}
