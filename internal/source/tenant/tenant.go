// Package tenant reads who a process belongs to, and how it was started: from its control
// groups, its user, its arguments and its environment.
package tenant

import (
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const (
	// MaxName bounds each name, in bytes: Kubernetes' longest have 253.
	MaxName    = 256
	maxUsers   = 1024 // that are remembered, those asked for last
	maxHanging = 8    // reads of a process's memory that do not come back
	maxLookups = 2    // the same of users

	memoryPatience = time.Second
	userPatience   = time.Second
)

// A Reader reads who processes belong to. It is safe for concurrent use.
type Reader struct {
	memories chan struct{} // a token for each read that is not back
	lookups  chan struct{} // the same for users

	mu    sync.Mutex
	users *lru.Cache[uint32, string]
}

// NewReader returns a Reader.
func NewReader() *Reader {
	return &Reader{memories: make(chan struct{}, maxHanging), lookups: make(chan struct{}, maxLookups), users: lru.New[uint32, string](maxUsers, nil)}
}

// Of returns who a process belongs to, without the names that only a container runtime
// knows, and without what is in the process's memory if that is not read in time. It may be
// another process by then: the caller looks.
func (r *Reader) Of(pid int) (who snapshot.Who, err error) {
	groups, err := proc.Cgroups(pid)
	if err != nil {
		return who, err
	}
	uid, err := proc.EffectiveUser(pid)
	if err != nil {
		return who, err
	}
	// The process may have mapped a file there that never answers a read.
	type memory struct {
		command string
		environ map[string]string
	}
	m, _ := within(r.memories, memoryPatience, func() (m memory) {
		m.command, _ = proc.CommandLine(pid)
		m.environ, _ = proc.Environ(pid, variables...)
		return m
	})
	p := placeOf(groups)
	who = snapshot.Who{User: r.user(uid), Command: m.command, PodUID: p.pod, ContainerID: p.container, Service: Bounded(p.unit), Job: p.job}
	if name := m.environ[service]; name != "" {
		who.Service = Bounded(name)
	}
	if number := m.environ[job]; who.Job == "" && isDigits(number) {
		who.Job = number
	}
	who.Rank, who.LocalRank, who.WorldSize = rankIn(m.environ)
	return who, nil
}

// Variables of an environment.
const service, job = "OTEL_SERVICE_NAME", "SLURM_JOB_ID"

// launchers have the variables in which each tells a process its rank, its rank on this machine, and
// how many ranks there are. The first that tells the first and the last counts: torchrun may run
// below Slurm.
var launchers = [...][3]string{
	{"RANK", "LOCAL_RANK", "WORLD_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"},
	{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"},
}

// variables are all that is kept of an environment.
var variables = func() []string {
	all := []string{service, job}
	for i := range launchers {
		all = append(all, launchers[i][:]...)
	}
	return all
}()

// rankIn returns what an environment says of a process's rank, "" for what it does not.
func rankIn(environ map[string]string) (rank, local, size string) {
	number := func(name string) (int64, string) {
		n, err := strconv.ParseInt(environ[name], 10, 32)
		if err != nil || n < 0 {
			return -1, ""
		}
		return n, strconv.FormatInt(n, 10)
	}
	for _, of := range launchers {
		n, rank := number(of[0])
		all, size := number(of[2])
		if rank != "" && n < all {
			_, local = number(of[1])
			return rank, local, size
		}
	}
	return "", "", ""
}

// user returns a user's name, or number where this machine knows no name, or does not
// say in time: it may ask a directory in the network.
func (r *Reader) user(uid uint32) string {
	r.mu.Lock()
	name, ok := r.users.Get(uid)
	r.mu.Unlock()
	if ok {
		return name
	}
	number := strconv.FormatUint(uint64(uid), 10)
	name, ok = within(r.lookups, userPatience, func() string {
		u, err := user.LookupId(number)
		if err != nil {
			return number
		}
		return Bounded(u.Username)
	})
	if !ok {
		return number
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users.Add(uid, name)
	return name
}

// Bounded returns a name as valid UTF-8 of at most MaxName bytes.
func Bounded(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), MaxName)], "")
}

// within returns what f returns, if it does so in time. Otherwise f goes on by itself,
// and keeps its token; without a free token it is not called.
func within[T any](tokens chan struct{}, patience time.Duration, f func() T) (v T, ok bool) {
	select {
	case tokens <- struct{}{}:
	default:
		return v, false
	}
	done := make(chan T, 1)
	go func() {
		defer func() { <-tokens }()
		done <- f()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v = <-done:
		return v, true
	case <-timer.C:
		return v, false
	}
}
