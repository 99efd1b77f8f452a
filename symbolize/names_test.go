package symbolize

import (
	"strings"
	"testing"
)

func TestReadable(t *testing.T) {
	for linkage, want := range map[string]string{
		"main": "main",
		"_ZN2at6native10empty_cudaEN3c108ArrayRefIlEE":                                 "at::native::empty_cuda",
		"_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator6mallocEm":   "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc",
		"_ZN5torch8autograd6Engine11thread_initEiRKSt10shared_ptrINS0_10ReadyQueueEEb": "torch::autograd::Engine::thread_init",
		"_ZNSt6vectorIiSaIiEE9push_backEOi":                                            "std::vector::push_back",
		"_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE":                             "core::fmt::Write::write_fmt",
		"_RNvCs1234_7mycrate3foo":                                                      "mycrate::foo",
		"_ZN2at4_ops4add_4callEv.isra.0":                                               "at::_ops::add_::call",
		"evil\x1b[31m\u202e":                                                           "evil\x1b[31m\u202e",
		"bad\xff":                                                                      "bad\xff",
		strings.Repeat("\xbf", 5000):                                                   strings.Repeat("\xbf", maxShown-4) + "...",
		strings.Repeat("n", maxShown-1) + "ß":                                          strings.Repeat("n", maxShown-1) + "...",
		"größe":                                                                        "größe",
		strings.Repeat("n", 5000):                                                      strings.Repeat("n", maxShown) + "...",
	} {
		if got := readable(linkage); got != want {
			t.Errorf("%q: got %q, want %q", linkage, got, want)
		}
	}
}
