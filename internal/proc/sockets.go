package proc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// maxSockets bounds what is read of /proc/PID/net/tcp, which unlike /proc/net is there in
// each mount of /proc: half a million sockets.
const maxSockets = 64 << 20

// ErrNoSocket says that a connection has no such end on this machine.
var ErrNoSocket = errors.New("no socket of this machine has that connection")

// SocketUser returns the user whose process made the end of an established TCP
// connection that is at local, with remote as the other end, in this process's network
// namespace. While the other end is open no socket of another user can come to be at
// local. An error wraps ErrNoSocket.
func SocketUser(local, remote netip.AddrPort) (uid uint32, err error) {
	for _, name := range []string{"tcp", "tcp6"} {
		if uid, err = socketUser(dirOf(os.Getpid())+"/net/"+name, local, remote); !errors.Is(err, ErrNoSocket) {
			return uid, err
		}
	}
	return 0, err
}

func socketUser(path string, local, remote netip.AddrPort) (uid uint32, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("find who is connected: %w", err)
	}
	defer f.Close()
	return findSocket(f, local, remote)
}

// established is TCP_ESTABLISHED: what waits to go away shows user 0.
const established = "01"

func findSocket(table io.Reader, local, remote netip.AddrPort) (uid uint32, err error) {
	var want []string // the ends as the table has them, of IPv4 in either form
	for _, wide := range []bool{false, true} {
		a, b := socketEnd(local, wide), socketEnd(remote, wide)
		if a != "" && b != "" {
			want = append(want, a+" "+b+" "+established+" ")
		}
	}
	lines := bufio.NewScanner(io.LimitReader(table, maxSockets))
	for lines.Scan() {
		_, ends, _ := strings.Cut(lines.Text(), ": ")
		for _, w := range want {
			if rest, ok := strings.CutPrefix(ends, w); ok {
				fields := strings.Fields(rest) // queues, timer, retransmits, uid
				if len(fields) < 4 {
					return 0, fmt.Errorf("find who is connected: unknown line %q", lines.Text())
				}
				n, err := strconv.ParseUint(fields[3], 10, 32)
				return uint32(n), err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("find who is connected: %w", err)
	}
	return 0, ErrNoSocket
}

// socketEnd returns an address as /proc/net/tcp has it, or as tcp6 does: words as the
// processor has them. It is "" for what the table cannot have.
func socketEnd(end netip.AddrPort, wide bool) string {
	addr := end.Addr().Unmap()
	var raw []byte
	switch {
	case wide:
		all := addr.As16()
		raw = all[:]
	case addr.Is4():
		all := addr.As4()
		raw = all[:]
	default:
		return ""
	}
	var b strings.Builder
	for ; len(raw) > 0; raw = raw[4:] {
		fmt.Fprintf(&b, "%08X", binary.NativeEndian.Uint32(raw))
	}
	fmt.Fprintf(&b, ":%04X", end.Port())
	return b.String()
}
