package heap

// A layout says where a minor version of CPython has what, in bytes. It is the same
// on x86-64 and arm64. The tests compare it with each interpreter.
type layout struct {
	minor int
	// Of _PyRuntime, of an interpreter and of a thread.
	interpreters, nextInterpreter, threads int
	generations                            int // of an interpreter, of _PyRuntime in 3.8, 0 to look for them in gc
	collecting                             int // whether the collector works
	gc, gcSize                             int // of an interpreter, from 3.13 on
	nextThread, threadID                   int
	frame                                  int // the frame, or the structure that has it
	cframe                                 int // of the frame in that structure, -1 without one
	// Of a frame object up to 3.10 or an internal frame.
	previous, code, locals, globals, instruction, stacktop, function int
	frameOwner                                                       int // -1 for none
	// Of a frame object from 3.11 on: where its internal frame is.
	frameFrame int
	// Of a generator: where its internal frame is, and its state.
	generatorFrame, generatorState int
	// Of a code object.
	firstLine, fileName, name, lineTable, bytecode, localNames int
	freeVars, cellVars                                         int
	// Of a type that was made while the program ran.
	cachedKeys int
	// Of a function.
	funcCode, funcGlobals, funcClosure, funcDefaults, funcKwDefaults, funcDict, funcQualName, funcSize int
	// Of an exception.
	traceback, context, cause int
	// Of a str object.
	asciiSize, unicodeSize int
	valuesAt               int // of the values in a dictionary's values
}

// What no version from 3.8 on moved.
const (
	gcHead = 16 // before an object: the next one and the one before

	typeName     = 24
	typeBasic    = 32
	typeItem     = 40
	typeFlags    = 168
	typeWeakList = 208
	typeMembers  = 240
	typeBase     = 256
	typeDict     = 264
	typeDictAt   = 288
	typeMRO      = 344

	dictKeys   = 32
	dictValues = 40
	dictSize   = 48
)

// Flags of a type.
const (
	flagInlineValues = 1 << 2 // from 3.13 on
	flagManagedDict  = 1 << 4 // from 3.11 on
	flagHeapType     = 1 << 9
	flagLong         = 1 << 24
	flagList         = 1 << 25
	flagTuple        = 1 << 26
	flagStr          = 1 << 28
	flagDict         = 1 << 29
	flagType         = 1 << 31
)

var layouts = map[int]layout{
	8: {
		minor: 8, interpreters: 32, nextInterpreter: 0, threads: 8, generations: 368, collecting: 544,
		nextThread: 8, threadID: 176, frame: 24, cframe: -1,
		previous: 24, code: 32, locals: 360, globals: 48, instruction: 104, stacktop: 72, frameOwner: -1,
		generatorFrame: 16,
		firstLine:      40, fileName: 104, name: 112, lineTable: 120, localNames: 72, freeVars: 80, cellVars: 88,
		cachedKeys: 872,
		funcCode:   16, funcGlobals: 24, funcClosure: 48, funcDefaults: 32, funcKwDefaults: 40, funcDict: 72, funcQualName: 104, funcSize: 120,
		traceback: 32, context: 40, cause: 48, asciiSize: 48, unicodeSize: 72,
	},
	9: {
		minor: 9, interpreters: 32, nextInterpreter: 0, threads: 8, generations: 640, collecting: 816,
		nextThread: 8, threadID: 176, frame: 24, cframe: -1,
		previous: 24, code: 32, locals: 360, globals: 48, instruction: 104, stacktop: 72, frameOwner: -1,
		generatorFrame: 16,
		firstLine:      40, fileName: 104, name: 112, lineTable: 120, localNames: 72, freeVars: 80, cellVars: 88,
		cachedKeys: 864,
		funcCode:   16, funcGlobals: 24, funcClosure: 48, funcDefaults: 32, funcKwDefaults: 40, funcDict: 72, funcQualName: 104, funcSize: 120,
		traceback: 32, context: 40, cause: 48, asciiSize: 48, unicodeSize: 72,
	},
	10: {
		minor: 10, interpreters: 32, nextInterpreter: 0, threads: 8, generations: 640, collecting: 816,
		nextThread: 8, threadID: 176, frame: 24, cframe: -1,
		previous: 24, code: 32, locals: 352, globals: 48, instruction: 96, stacktop: 80, frameOwner: -1,
		generatorFrame: 16,
		firstLine:      40, fileName: 104, name: 112, lineTable: 120, localNames: 72, freeVars: 80, cellVars: 88,
		cachedKeys: 872,
		funcCode:   48, funcGlobals: 16, funcClosure: 72, funcDefaults: 56, funcKwDefaults: 64, funcDict: 88, funcQualName: 40, funcSize: 128,
		traceback: 32, context: 40, cause: 48, asciiSize: 48, unicodeSize: 72,
	},
	11: {
		minor: 11, interpreters: 40, nextInterpreter: 0, threads: 16, generations: 672, collecting: 848,
		nextThread: 8, threadID: 152, frame: 56, cframe: 8,
		previous: 48, code: 32, locals: 72, globals: 8, instruction: 56, stacktop: 64, function: 0, frameOwner: 69,
		frameFrame: 24, generatorFrame: 80, generatorState: 75,
		firstLine: 72, fileName: 112, name: 120, lineTable: 136, bytecode: 184, localNames: 96,
		cachedKeys: 872,
		funcCode:   48, funcGlobals: 16, funcClosure: 72, funcDefaults: 56, funcKwDefaults: 64, funcDict: 88, funcQualName: 40, funcSize: 136,
		traceback: 40, context: 48, cause: 56, asciiSize: 48, unicodeSize: 72,
	},
	12: {
		minor: 12, interpreters: 40, nextInterpreter: 0, threads: 72, generations: 136, collecting: 312,
		nextThread: 8, threadID: 136, frame: 56, cframe: 0,
		previous: 8, code: 0, locals: 72, globals: 24, instruction: 56, stacktop: 64, function: 16, frameOwner: 70,
		frameFrame: 24, generatorFrame: 72, generatorState: 67,
		firstLine: 68, fileName: 112, name: 120, lineTable: 136, bytecode: 192, localNames: 96,
		cachedKeys: 880,
		funcCode:   48, funcGlobals: 16, funcClosure: 72, funcDefaults: 56, funcKwDefaults: 64, funcDict: 88, funcQualName: 40, funcSize: 144,
		traceback: 40, context: 48, cause: 56, asciiSize: 40, unicodeSize: 56,
	},
	13: {
		minor: 13, interpreters: 632, nextInterpreter: 7264, threads: 7344,
		nextThread: 8, threadID: 152, frame: 72, cframe: -1,
		previous: 8, code: 0, locals: 72, globals: 24, instruction: 56, stacktop: 64, function: 16, frameOwner: 70,
		frameFrame: 24, generatorFrame: 72, generatorState: 67,
		firstLine: 68, fileName: 112, name: 120, lineTable: 136, bytecode: 200, localNames: 96,
		cachedKeys: 880,
		funcCode:   48, funcGlobals: 16, funcClosure: 72, funcDefaults: 56, funcKwDefaults: 64, funcDict: 88, funcQualName: 40, funcSize: 144,
		traceback: 40, context: 48, cause: 56, asciiSize: 40, unicodeSize: 56, valuesAt: 8,
	},
	14: { // the rest it says itself
		minor: 14, cframe: -1, function: 16, frameFrame: 24, cachedKeys: 880,
		funcCode: 48, funcGlobals: 16, funcClosure: 72, funcDefaults: 56, funcKwDefaults: 64, funcDict: 88, funcQualName: 40, funcSize: 144,
		traceback: 40, context: 48, cause: 56, asciiSize: 40, unicodeSize: 56, valuesAt: 8,
	},
}

// funcName returns where a function has its name: before its qualified one, or up to 3.9 before its attributes.
func (l *layout) funcName() int {
	if l.minor < 10 {
		return l.funcDict - 8
	}
	return l.funcQualName - 8
}
