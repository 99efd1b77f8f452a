package probes

import (
	"slices"
	"strings"
)

// maxUnlisted bounds LibraryReport.Unlisted.
const maxUnlisted = 100

// memoryWords are in the names of functions that may bring memory or end it.
var memoryWords = []string{"Alloc", "Malloc", "Create", "Map", "Import", "Open", "Reserve", "Register", "Retain", "Load",
	"Free", "Destroy", "Release", "Unmap"}

// notMemory are the functions of libcuda with such a word that have no row, because they bring no memory of their
// own. A * stands for any ending.
var notMemory = strings.Fields(`cuCoredumpRegister* cuDestroyExternalSemaphore cuDeviceRegisterAsyncNotification
	cuEGLStream* cuEventCreate cuEventDestroy cuEventDestroy_v2 cuFuncIsLoaded cuFuncLoad cuGLMap*
	cuGLRegisterBufferObject cuGLSetBufferObjectMapFlags cuGLUnmap* cuGraphConditionalHandleCreate cuGraphCreate
	cuGraphDestroyNode cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams cuGraphReleaseUserObject
	cuGraphRetainUserObject cuGraphics* cuImportExternalSemaphore cuIpcOpenEventHandle cuLink* cuLogsRegisterCallback
	cuMemGetAllocation* cuMemPoolImportFromShareableHandle cuModuleGetLoadingMode cuSurf* cuTensorMap* cuTex*
	cuUserObject*`)

// unversioned returns the part of a function's name that its versions share.
func unversioned(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "_ptsz"), "_ptds")
	if i := strings.LastIndex(name, "_v"); i >= 0 && strings.Trim(name[i+2:], "0123456789") == "" {
		return name[:i]
	}
	return name
}

// versioned are the functions of Table, by the part of their names that versions share.
var versioned = func() map[string]bool {
	m := map[string]bool{}
	for name := range symbols {
		m[unversioned(name)] = true
	}
	return m
}()

// mayMoveMemory reports whether a function of libcuda may bring memory or end it, by its name.
func mayMoveMemory(name string) bool {
	return slices.ContainsFunc(memoryWords, func(word string) bool { return strings.Contains(name, word) }) || versioned[unversioned(name)]
}

// unlisted reports whether a name looks like that of a function of CUDA's driver API which brings memory or ends
// it, and which this program does not know.
func unlisted(name []byte) bool {
	if len(name) < 3 || string(name[:2]) != "cu" || name[2] < 'A' || name[2] > 'Z' || known(name) {
		return false
	}
	s := string(name)
	return mayMoveMemory(s) && !strings.HasSuffix(s, imported) && !slices.ContainsFunc(notMemory, func(pattern string) bool {
		begins, many := strings.CutSuffix(pattern, "*")
		return s == begins || many && strings.HasPrefix(s, begins)
	})
}
