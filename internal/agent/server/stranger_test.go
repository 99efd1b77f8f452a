package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// strangerEnv makes the test program a stranger: see beStranger.
const strangerEnv = "GPUMEMTRACE_TEST_STRANGER"

func TestMain(m *testing.M) {
	if os.Getenv(strangerEnv) != "" {
		beStranger()
		return
	}
	os.Exit(m.Run())
}

// beStranger obeys commands of standard input, and answers each with a line:
//
//	hold N          opens N TCP sockets, and keeps them
//	ask N ADDRESS   makes N requests, each by a connection of its own, and tells how many
//	                had which answer
//	keep N ADDRESS  opens N connections that say nothing
func beStranger() {
	fail := func(err error) {
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
	var kept []net.Conn
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var what, address string
		var n int
		if _, err := fmt.Sscan(lines.Text()+" -", &what, &n, &address); err != nil {
			fail(err)
		}
		switch what {
		case "hold":
			for range n / 2 {
				c, err := net.Dial("tcp", l.Addr().String())
				fail(err)
				other, err := l.Accept()
				fail(err)
				kept = append(kept, c, other)
			}
			fmt.Println("holds", len(kept))
		case "ask":
			answers := map[string]int{}
			for range n {
				answers[askOnce(address)]++
			}
			fmt.Println(answers)
		case "keep":
			for range n {
				if c, err := net.Dial("tcp", address); err == nil {
					kept = append(kept, c)
				}
			}
			fmt.Println("kept")
		}
	}
}

// askOnce returns the status of one request, or "refused" if the connection was ended.
func askOnce(address string) string {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return "refused"
	}
	defer c.Close()
	fmt.Fprint(c, "GET /api/v1/top HTTP/1.0\r\nHost: localhost\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "refused"
	}
	defer answer.Body.Close()
	return fmt.Sprint(answer.StatusCode)
}

// A stranger is a process of a user who may not read.
type stranger struct {
	t     testing.TB
	in    io.WriteCloser
	lines *bufio.Scanner
}

func newStranger(t testing.TB, uid uint32) *stranger {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = []string{strangerEnv + "=yes"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &stranger{t, in, bufio.NewScanner(out)}
}

// does has the stranger obey a command.
func (x *stranger) does(format string, args ...any) string {
	x.t.Helper()
	if _, err := fmt.Fprintf(x.in, format+"\n", args...); err != nil {
		x.t.Fatal(err)
	}
	if !x.lines.Scan() || strings.HasPrefix(x.lines.Text(), "failed") {
		x.t.Fatal(x.lines.Text(), x.lines.Err())
	}
	return x.lines.Text()
}

// used is the processor time that this process has used.
func used(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// forgets gives every user the whole of what a user may do at once.
func (s *served) forgets() {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	s.listener.allowances.Purge()
}

// BenchmarkRefusal is a request without the right to read, on machines with few sockets and
// with many.
func BenchmarkRefusal(b *testing.B) {
	for _, sockets := range []int{100, 8000} {
		b.Run(fmt.Sprint(sockets, " sockets"), func(b *testing.B) {
			s := serve(b, Options{Source: begun()})
			x := newStranger(b, 65534)
			x.does("hold %d", sockets)
			before := used(b)
			for b.Loop() {
				s.forgets()
				wants(b, "the answer", x.does("ask 1 %s", s.Addr()), "map[401:1]")
			}
			b.ReportMetric(float64(used(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// A user who asks without end is answered a share of it, and the others notice nothing:
// what is beyond the share ends with the connection, unread.
func TestFlood(t *testing.T) {
	s := serve(t, Options{Source: begun()})
	x, other := newStranger(t, 65534), newStranger(t, 65533)
	s.forgets()
	begun, before := time.Now(), used(t)
	const asked = 20000
	got := x.does("ask %d %s", asked, s.Addr())
	took, cost := time.Since(begun), used(t)-before
	var answered int
	for one := range strings.FieldsSeq(strings.Trim(got, "map[]")) {
		var n int
		if _, err := fmt.Sscanf(one, "401:%d", &n); err == nil {
			answered = n
		}
	}
	t.Logf("%s in %v, with %v of processor time: %v a request", got, took, cost, cost/asked)
	// Each takes two: one for the connection, one for the request.
	if most := (allowanceAtOnce + int(took.Seconds()*allowanceRate) + 1) / 2; answered == 0 || answered > most {
		t.Errorf("%d of %d were answered, want at most %d", answered, asked, most)
	}
	wants(t, "another user", other.does("ask 1 %s", s.Addr()), "map[401:1]")
	wants(t, "root", s.asks(0, "Host: localhost"), "200 OK")
	if n := s.lossOf("http_requests_refused"); n == 0 || answered == asked {
		t.Errorf("%d refused, of %d", n, asked)
	}
}

// Users who keep connections leave room for others, and for root.
func TestKeptConnections(t *testing.T) {
	s := serve(t, Options{Source: begun()}, func(s *Server) { s.http.ReadHeaderTimeout = time.Minute })
	left := maxLocal
	for uid := uint32(65500); uid < 65505; uid++ {
		x := newStranger(t, uid)
		x.does("keep %d %s", maxOfUser+20, s.Addr())
		// When root's connection was accepted those before it were, or were refused.
		wants(t, "root", s.asks(0, "Host: localhost"), "200 OK")
		want := min(maxOfUser, left)
		left -= want
		s.listener.mu.Lock()
		if got := s.listener.open[peer{local: true, known: true, uid: uid}]; got != want {
			t.Errorf("user %d has %d connections, want %d", uid, got, want)
		}
		s.listener.mu.Unlock()
	}
	for range maxStrangers - maxLocal {
		if !s.listener.admit(peer{}, time.Now()) {
			t.Fatal("no room for other machines")
		}
	}
	if s.listener.admit(peer{}, time.Now()) {
		t.Error("other machines leave no room for root")
	}
}

// A share is given back, and an allowance grows again up to what it was.
func TestAllowance(t *testing.T) {
	a := newAdmission(nil, nil, loss.New(causes))
	user := peer{local: true, known: true, uid: 1000}
	now := time.Unix(1000, 0)
	spent := func(p peer) (n int) {
		for n < 10*allowanceAtOnce && a.spend(p, now) {
			n++
		}
		return n
	}
	for i, step := range []struct {
		after time.Duration
		want  int
	}{{0, allowanceAtOnce}, {0, 0}, {time.Second, allowanceRate}, {time.Second / 2, allowanceRate / 2}, {-time.Hour, 0}, {2 * time.Hour, allowanceAtOnce}} {
		now = now.Add(step.after)
		if got := spent(user); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
	if got := spent(peer{local: true}); got != allowanceAtOnce {
		t.Errorf("one who is not known: %d", got)
	}
	for _, p := range []peer{{}, {local: true, known: true}, {local: true, known: true, uid: uint32(os.Geteuid())}} {
		if got := spent(p); got != 10*allowanceAtOnce {
			t.Errorf("%+v is bounded: %d", p, got)
		}
	}
}
