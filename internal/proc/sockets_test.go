package proc

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ends are a connection's, as its accepting end sees them.
func ends(c net.Conn) (local, remote netip.AddrPort) {
	return c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
}

// Whoever connects is known, by either kind of address, until they do not any more.
func TestSocketUser(t *testing.T) {
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
		if uid, err := SocketUser(remote, local); uid != 65534 || err != nil {
			t.Errorf("%s: user %d, %v", address, uid, err)
		}
		if uid, err := SocketUser(local, remote); uid != uint32(os.Getuid()) || err != nil {
			t.Errorf("%s: this end is user %d's, %v", address, uid, err)
		}
		in.Close()
		if err := connect.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		end := time.Now().Add(5 * time.Second)
		for err = nil; !errors.Is(err, ErrNoSocket) && time.Now().Before(end); {
			_, err = SocketUser(remote, local)
		}
		if !errors.Is(err, ErrNoSocket) {
			t.Errorf("%s: gone, but %v", address, err)
		}
	}
}

// What is not established is nobody's: the kernel shows user 0 for what waits to go away.
func TestFindSocket(t *testing.T) {
	local, remote := netip.MustParseAddrPort("127.0.0.1:4000"), netip.MustParseAddrPort("127.0.0.1:9844")
	a, b := socketEnd(local, false), socketEnd(remote, false)
	line := func(state, uid string) string {
		return "   0: " + a + " " + b + " " + state + " 00000000:00000000 00:00000000 00000000 " + uid + "        0 1 1 0 100 0 0 10 0\n"
	}
	if uid, err := findSocket(strings.NewReader("  sl  local_address\n"+line("06", "0")+line("01", "1000")), local, remote); uid != 1000 || err != nil {
		t.Error(uid, err)
	}
	for _, table := range []string{"", line("06", "0"), line("08", "0"), "garbage\n"} {
		if uid, err := findSocket(strings.NewReader(table), local, remote); !errors.Is(err, ErrNoSocket) {
			t.Errorf("%q: user %d, %v", table, uid, err)
		}
	}
	for _, table := range []string{"  0: " + a + " " + b + " 01 \n", line("01", "x"), line("01", "-1")} {
		if uid, err := findSocket(strings.NewReader(table), local, remote); err == nil || errors.Is(err, ErrNoSocket) {
			t.Errorf("%q: user %d, %v", table, uid, err)
		}
	}
}
