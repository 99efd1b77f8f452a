package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNoSocket says that a connection has no such end on this machine.
var ErrNoSocket = errors.New("no socket of this machine has that connection")

// errListEnds says that a list of sockets is at its end.
var errListEnds = errors.New("no more sockets")

// Sockets asks the kernel about the TCP sockets of this process's network namespace, one
// at a time: the kernel looks a connection up by its two ends, so that an answer costs the
// same however many sockets there are.
type Sockets struct {
	mu  sync.Mutex
	fd  int // a netlink socket
	seq uint32
}

// OpenSockets returns Sockets. An error says that this kernel does not answer such
// questions.
func OpenSockets() (*Sockets, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("ask the kernel about sockets: %w", err)
	}
	s := &Sockets{fd: fd}
	// A list of the sockets that are in no state ends at once, if the kernel can list any.
	if _, err := s.ask(diagRequest{family: unix.AF_INET, flags: unix.NLM_F_DUMP}); !errors.Is(err, errListEnds) {
		return nil, errors.Join(fmt.Errorf("ask the kernel about sockets: %w", err), s.Close())
	}
	return s, nil
}

// Close ends all questions.
func (s *Sockets) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd := s.fd
	s.fd = -1
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

// User returns the user whose process made the end of an established TCP connection over
// the loopback device that is at local, with remote as the other end. While the other end
// is open no socket of another user can come to be at local. An error wraps ErrNoSocket if
// there is no such end.
func (s *Sockets) User(local, remote netip.AddrPort) (uid uint32, err error) {
	local, remote = unmapped(local), unmapped(remote)
	r := diagRequest{family: unix.AF_INET6, local: local, remote: remote, states: ^uint32(0)}
	if local.Addr().Is4() != remote.Addr().Is4() {
		return 0, ErrNoSocket
	}
	if local.Addr().Is4() {
		r.family = unix.AF_INET
	}
	found, err := s.ask(r)
	if errors.Is(err, unix.ENOENT) {
		err = ErrNoSocket
	}
	if err != nil {
		return 0, fmt.Errorf("find who is connected: %w", err)
	}
	// Where the connection is over the kernel finds who listens at local, and what waits
	// to go away shows user 0.
	if found.state != established || found.local != local || found.remote != remote {
		return 0, fmt.Errorf("find who is connected: %w", ErrNoSocket)
	}
	return found.uid, nil
}

// unmapped returns an end of a connection as both kinds of sockets have it.
func unmapped(end netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(end.Addr().Unmap().WithZone(""), end.Port())
}

// established is TCP_ESTABLISHED.
const established = 1

// loopbackIndex is the number of the loopback device in every network namespace
// (LOOPBACK_IFINDEX). It finds sockets that are bound to the device, and those that are
// bound to none.
const loopbackIndex = 1

// Sizes of struct nlmsghdr, inet_diag_req_v2 and inet_diag_msg, and where struct
// inet_diag_sockid is in the last two.
const (
	netlinkHead   = unix.SizeofNlMsghdr
	diagQuestion  = 56
	diagAnswer    = 72
	diagSockidOf  = 8 // in the question
	diagSockidIn  = 4 // in the answer
	diagUser      = 64
	maxDiagAnswer = 4 << 10
)

// A diagRequest is a question to the kernel (struct inet_diag_req_v2).
type diagRequest struct {
	family        uint8
	flags         uint16
	states        uint32 // of those that are listed, as bits
	local, remote netip.AddrPort
}

func (r *diagRequest) encode(seq uint32) []byte {
	b := make([]byte, netlinkHead+diagQuestion)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|r.flags)
	binary.NativeEndian.PutUint32(b[8:], seq)
	q := b[netlinkHead:]
	q[0], q[1] = r.family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(q[4:], r.states)
	id := q[diagSockidOf:]
	binary.BigEndian.PutUint16(id, r.local.Port())
	binary.BigEndian.PutUint16(id[2:], r.remote.Port())
	copy(id[4:20], r.local.Addr().AsSlice())
	copy(id[20:36], r.remote.Addr().AsSlice())
	binary.NativeEndian.PutUint32(id[36:], loopbackIndex)
	for i := 40; i < 48; i++ { // no cookie
		id[i] = 0xff
	}
	return b
}

// A socket is what the kernel says of one (struct inet_diag_msg).
type socket struct {
	state         uint8
	local, remote netip.AddrPort
	uid           uint32
}

// ask returns the first answer to r. It asks one question at a time. The kernel answers
// during the send.
func (s *Sockets) ask(r diagRequest) (socket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return socket{}, os.ErrClosed
	}
	s.seq++
	if err := unix.Sendto(s.fd, r.encode(s.seq), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return socket{}, err
	}
	var b [maxDiagAnswer]byte
	for {
		n, from, err := unix.Recvfrom(s.fd, b[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return socket{}, err
		}
		sender, ok := from.(*unix.SockaddrNetlink)
		if !ok || sender.Pid != 0 { // not the kernel
			continue
		}
		if n >= netlinkHead && binary.NativeEndian.Uint32(b[8:]) == s.seq {
			return decodeAnswer(b[:n])
		}
	}
}

// decodeAnswer reads the first message of an answer.
func decodeAnswer(b []byte) (socket, error) {
	invalid := errors.New("the kernel's answer to a question about a socket is not understood")
	size := binary.NativeEndian.Uint32(b)
	if size < netlinkHead || uint64(size) > uint64(len(b)) {
		return socket{}, invalid
	}
	kind, body := binary.NativeEndian.Uint16(b[4:]), b[netlinkHead:size]
	switch kind {
	case unix.NLMSG_ERROR, unix.NLMSG_DONE:
		var code int32
		if len(body) >= 4 {
			code = int32(binary.NativeEndian.Uint32(body))
		}
		switch {
		case kind == unix.NLMSG_DONE && code == 0:
			return socket{}, errListEnds
		case code < 0:
			return socket{}, unix.Errno(-code)
		}
		return socket{}, invalid
	case unix.SOCK_DIAG_BY_FAMILY:
	default:
		return socket{}, invalid
	}
	if len(body) < diagAnswer {
		return socket{}, invalid
	}
	id := body[diagSockidIn:]
	length := 16
	if body[0] == unix.AF_INET {
		length = 4
	}
	end := func(port, addr int) netip.AddrPort {
		a, _ := netip.AddrFromSlice(id[addr : addr+length])
		return unmapped(netip.AddrPortFrom(a, binary.BigEndian.Uint16(id[port:])))
	}
	return socket{state: body[1], local: end(0, 4), remote: end(2, 20), uid: binary.NativeEndian.Uint32(body[diagUser:])}, nil
}
