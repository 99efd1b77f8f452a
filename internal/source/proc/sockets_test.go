package proc

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ends are a connection's, as its accepting end sees them.
func ends(c net.Conn) (local, remote netip.AddrPort) {
	return c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
}

// Whoever connects is known, by either kind of address, until they do not any more.
func TestSocketUser(t *testing.T) {
	sockets := openSockets(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		host := map[string]string{"127.0.0.1:0": "127.0.0.1", "[::1]:0": "::1", "[::]:0": "127.0.0.1"}[address]
		connect := exec.Command("bash", "-c", "exec 3<>/dev/tcp/"+host+"/"+port+"; read")
		connect.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		in, err := connect.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := connect.Start(); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		local, remote := ends(c)
		if uid, err := sockets.User(remote, local); uid != 65534 || err != nil {
			t.Errorf("%s: user %d, %v", address, uid, err)
		}
		if uid, err := sockets.User(local, remote); uid != uint32(os.Getuid()) || err != nil {
			t.Errorf("%s: this end is user %d's, %v", address, uid, err)
		}
		in.Close()
		if err := connect.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		end := time.Now().Add(5 * time.Minute)
		for err = nil; !errors.Is(err, ErrNoSocket) && time.Now().Before(end); {
			_, err = sockets.User(remote, local)
		}
		if !errors.Is(err, ErrNoSocket) {
			t.Errorf("%s: gone, but %v", address, err)
		}
	}
}

// A socket that is bound to the loopback device is found too, and one that only listens is
// nobody's end of a connection.
func TestSocketUserBound(t *testing.T) {
	sockets := openSockets(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "lo") }), err)
	}}
	client, err := dialer.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	local, remote := ends(c)
	if uid, err := sockets.User(remote, local); uid != uint32(os.Getuid()) || err != nil {
		t.Errorf("user %d, %v", uid, err)
	}
	for _, other := range []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("[::1]:1")} {
		if uid, err := sockets.User(local, other); !errors.Is(err, ErrNoSocket) {
			t.Errorf("connected to %v: user %d, %v", other, uid, err)
		}
	}
	if err := sockets.Close(); err != nil {
		t.Error(err)
	}
	if _, err := sockets.User(remote, local); !errors.Is(err, os.ErrClosed) {
		t.Error("after the end:", err)
	}
}

// However many sockets there are, the kernel answers a question with one message: what an
// answer costs does not grow with what others hold.
func TestOneAnswer(t *testing.T) {
	sockets := openSockets(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 200 {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		local, remote := ends(c)
		if _, err := sockets.User(remote, local); err != nil {
			t.Fatal(err)
		}
	}
	var more [maxDiagAnswer]byte
	if n, _, err := unix.Recvfrom(sockets.fd, more[:], unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%d bytes more came: %v", n, err)
	}
}

// What is not an answer is an error, and no user.
func TestDecodeAnswer(t *testing.T) {
	answer := func(kind uint16, body ...byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(netlinkHead+len(body)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		return append(append(b, make([]byte, 10)...), body...)
	}
	code := func(n int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }
	for name, b := range map[string][]byte{
		"short": answer(unix.SOCK_DIAG_BY_FAMILY, make([]byte, diagAnswer-1)...), "cut": answer(unix.SOCK_DIAG_BY_FAMILY, make([]byte, diagAnswer)...)[:netlinkHead+diagAnswer-1],
		"of another kind": answer(77, make([]byte, diagAnswer)...), "an error": answer(unix.NLMSG_ERROR, code(-int32(unix.EPERM))...), "no error": answer(unix.NLMSG_ERROR, code(0)...),
		"the end of a list": answer(unix.NLMSG_DONE, code(0)...), "an error without its number": answer(unix.NLMSG_ERROR), "too small a size": make([]byte, netlinkHead),
	} {
		if got, err := decodeAnswer(b); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func openSockets(t *testing.T) *Sockets {
	t.Helper()
	s, err := OpenSockets()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
