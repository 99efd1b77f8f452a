package server

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Who gives wrong tokens has to wait, longer and longer, whatever is given meanwhile;
// others need not; and a right one, or a long time, is a new beginning.
func TestTries(t *testing.T) {
	x, now := newTries(), time.Unix(1_700_000_000, 0)
	looked := 0
	try := func(source string, right bool) (bool, time.Duration) {
		return x.judge(source, now, func() bool { looked++; return right })
	}
	for range freeTries + 1 {
		if ok, wait := try("a", false); ok || wait != 0 {
			t.Fatalf("%v, %v", ok, wait)
		}
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		want *= time.Second
		before := looked
		if ok, wait := try("a", true); ok || wait != want || looked != before {
			t.Errorf("the right one: %v, wait %v, want %v", ok, wait, want)
		}
		if ok, wait := try("b", true); !ok || wait != 0 {
			t.Errorf("another source: %v, %v", ok, wait)
		}
		now = now.Add(want)
		if ok, wait := try("a", false); ok || wait != 0 {
			t.Errorf("after %v: %v, %v", want, ok, wait)
		}
	}
	now = now.Add(lastWait)
	if ok, _ := try("a", true); !ok {
		t.Error("the right one, after it waited")
	}
	for range freeTries + 1 {
		if _, wait := try("a", false); wait != 0 {
			t.Errorf("it waits %v after a right one", wait)
		}
	}
	now = now.Add(forgiven)
	for range freeTries + 1 {
		if _, wait := try("a", false); wait != 0 {
			t.Errorf("it waits %v after a long time", wait)
		}
	}
	// As many sources as there may be.
	for i := range 3 * maxSources {
		try(strconv.Itoa(i), false)
	}
	if n := x.bad.Len(); n != maxSources {
		t.Errorf("%d sources are remembered", n)
	}
}

// A source is what its sender cannot choose.
func TestSources(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7:1234": "192.0.2.7", "[::ffff:192.0.2.7]:99": "192.0.2.7", "[2001:db8:1:2:3:4:5:6]:99": "2001:db8:1:2::/64", "[fe80::1%eth0]:99": "fe80::/64", "nonsense": "unknown",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr = address
		r.Header.Set("X-Forwarded-For", "198.51.100.1")
		if got := sourceOf(r); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}

// Many tries at one time are as many tries as one after the other, as a bearer's token and
// as a password together. They are counted, and another user of the machine reads on.
func TestManyTries(t *testing.T) {
	s := serve(t, Options{Source: begun(), TokenFile: file(t, "token", token)})
	var all sync.WaitGroup
	var wrong, refused atomic.Int32
	for i := range 40 {
		all.Go(func() {
			given := fmt.Sprintf("fedcba98765432%02d", i)
			answer, _ := s.ask(http.MethodGet, "/api/v1/top", func(r *http.Request) {
				if r.SetBasicAuth("anybody", given); i%2 == 0 {
					r.Header.Set("Authorization", "Bearer "+given)
				}
			})
			after := answer.Header.Get("Retry-After")
			switch answer.StatusCode {
			case http.StatusUnauthorized:
				wrong.Add(1)
			case http.StatusTooManyRequests:
				refused.Add(1)
				if n, err := strconv.Atoi(after); err != nil || n < 1 || n > int(lastWait/time.Second) {
					t.Errorf("Retry-After %q", after)
				}
			default:
				t.Errorf("status %d", answer.StatusCode)
			}
		})
	}
	all.Wait()
	// On a slow machine it may have waited in between, for a second and more.
	if n := wrong.Load(); n < freeTries+1 || n > freeTries+5 || wrong.Load()+refused.Load() != 40 {
		t.Errorf("%d tries, %d refused", n, refused.Load())
	}
	for _, x := range s.Loss() {
		if x.Name == "http_tokens_refused" && x.Value != uint64(refused.Load()) {
			t.Errorf("%s is %d, want %d", x.Name, x.Value, refused.Load())
		}
	}
	if got := s.asks(65534, "Host: localhost\\r\\nAuthorization: Bearer "+token); !strings.Contains(got, "200") {
		t.Errorf("another user, with the token: %s", got)
	}
}
