// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// process is one line of /proc/PID/stat. Its id and start time name it for good.
type process struct {
	pid, ppid, pgrp, session int
	state                    byte
	threads                  int
	start                    uint64 // clock ticks since boot
}

// dead reports whether nothing of the process runs. The state is the main
// thread's: that may have ended before the others.
func (p process) dead() bool { return p.state == 'X' || p.state == 'Z' && p.threads <= 1 }

// readProcess uses bare system calls: a hunt races what it hunts.
func readProcess(pid int) (process, error) {
	name := "/proc/" + strconv.Itoa(pid) + "/stat"
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return process{}, os.NewSyscallError("open "+name, err)
	}
	defer syscall.Close(fd)
	var b [1024]byte // some 52 numbers and a name of 64 bytes at most
	n, err := syscall.Read(fd, b[:])
	if err != nil {
		return process{}, os.NewSyscallError("read "+name, err)
	}
	return parseStat(b[:n])
}

// parseStat reads a stat line. The name in it may hold anything, spaces and
// brackets too; the last bracket ends it.
func parseStat(b []byte) (process, error) {
	bad := errors.New("supervise: /proc/PID/stat does not parse")
	head, _, ok := bytes.Cut(b, []byte(" ("))
	end := bytes.LastIndexByte(b, ')')
	if !ok || end < 0 {
		return process{}, bad
	}
	f := bytes.Fields(b[end+1:]) // the third field on
	if len(f) < 20 || len(f[0]) != 1 {
		return process{}, bad
	}
	p := process{state: f[0][0]}
	var errs [6]error
	p.pid, errs[0] = strconv.Atoi(string(head))
	p.ppid, errs[1] = strconv.Atoi(string(f[1]))
	p.pgrp, errs[2] = strconv.Atoi(string(f[2]))
	p.session, errs[3] = strconv.Atoi(string(f[3]))
	p.threads, errs[5] = strconv.Atoi(string(f[17]))
	p.start, errs[4] = strconv.ParseUint(string(f[19]), 10, 64)
	if errors.Join(errs[:]...) != nil {
		return process{}, bad
	}
	return p, nil
}

// processes lists all, roughly: what forks or dies meanwhile may be missing or
// gone.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var all []process
	for _, n := range names {
		if n[0] < '1' || n[0] > '9' {
			continue
		}
		if pid, err := strconv.Atoi(n); err == nil {
			if p, err := readProcess(pid); err == nil {
				all = append(all, p)
			}
		}
	}
	return all
}

// descendants returns the roots among all and what descends from them, the
// newest first.
func descendants(all []process, root func(process) bool) []process {
	children := map[int][]process{}
	var found []process
	for _, p := range all {
		if root(p) {
			found = append(found, p)
		} else {
			children[p.ppid] = append(children[p.ppid], p)
		}
	}
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
		delete(children, found[i].pid)
	}
	slices.SortFunc(found, func(a, b process) int {
		return cmp.Or(cmp.Compare(b.start, a.start), cmp.Compare(b.pid, a.pid))
	})
	return found
}

// signal reaches this process only, never another one that got its id since:
// it takes hold of whoever has the id, then looks whether that is still p.
func (p process) signal(sig syscall.Signal) error {
	held, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	defer held.Release()
	now, err := readProcess(p.pid)
	if err != nil || now.start != p.start {
		return os.ErrProcessDone
	}
	return held.Signal(sig)
}

// rehearse does once what a hunt does, so that the hunt does not wait for code
// to be paged in, or for package os to find out what the kernel can do.
func rehearse() {
	self := os.Getpid()
	for _, p := range descendants(processes(), func(p process) bool { return p.pid == self }) {
		if p.pid == self {
			_ = p.signal(0)
		}
	}
}

// killDescendants kills all descendants of this process and returns when there
// is no child left, and how many it found alive.
func killDescendants(_ int, reap func() bool, survivor func(int, error)) int {
	self := os.Getpid()
	find := func() []process {
		return descendants(processes(), func(p process) bool { return p.ppid == self })
	}
	return newHunt(find, reap, survivor).run()
}

// sweep kills the orphans that came to this process from a watchdog that is
// gone, and returns when all are dead. They are known by their session: the
// watchdog left ours, and nobody can come back to it.
func sweep(_ int, survivor func(int, error)) {
	me, err := readProcess(os.Getpid())
	if err != nil {
		return // nothing can be found here; Containment said so
	}
	find := func() []process {
		watchdogs.Lock() // none is being started
		defer watchdogs.Unlock()
		return descendants(processes(), func(p process) bool {
			return p.ppid == me.pid && p.session != me.session && !watchdogs.pids[p.pid]
		})
	}
	calm := 0
	reap := func() bool {
		found := find()
		if len(found) == 0 {
			// What was orphaned during a scan may have been missed by it.
			calm++
			return calm < 3
		}
		calm = 0
		for _, p := range found {
			if p.ppid == me.pid && p.dead() {
				_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil)
			}
		}
		return true
	}
	newHunt(find, reap, survivor).run()
}

// hunt kills a set of processes that may be growing.
type hunt struct {
	find     func() []process // those to kill, dead ones included
	reap     func() bool      // takes the dead, reports whether any are left
	survivor func(int, error) // told once of each that does not die

	group   int // our own, never killed
	stopped map[process]bool
	killed  map[process]time.Time
}

// patience is how long a killed process may take to die before it is reported.
const patience = time.Second

// stopRounds bounds how often a round of stopping is repeated because it found
// processes that no round had seen. Killing does not wait for calm.
const stopRounds = 8

func newHunt(find func() []process, reap func() bool, survivor func(int, error)) *hunt {
	return &hunt{
		find: find, reap: reap, survivor: survivor, group: syscall.Getpgrp(),
		stopped: map[process]bool{}, killed: map[process]time.Time{},
	}
}

// run stops all, until there is nobody who could fork unseen, and then kills
// all; again, until none is left. Stopping first keeps a parent from replacing
// the children that it sees die, and a fork bomb from using the room.
func (h *hunt) run() int {
	if !h.reap() {
		return 0
	}
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 50*time.Millisecond) {
		alive := h.alive()
		for round := 0; h.stop(alive) && round < stopRounds; round++ {
			alive = h.alive()
		}
		if h.kill(alive) {
			pause = 200 * time.Microsecond
		}
		if !h.reap() && len(alive) == 0 {
			return len(h.killed)
		}
		if len(alive) > 0 || pause > time.Millisecond {
			time.Sleep(pause)
		}
	}
}

func (h *hunt) alive() []process {
	return slices.DeleteFunc(h.find(), process.dead)
}

// key is p without what changes in its life.
func (p process) key() process { return process{pid: p.pid, start: p.start} }

// stop reports whether there was anything that was not stopped before.
func (h *hunt) stop(alive []process) (fresh bool) {
	for _, p := range alive {
		if k := p.key(); !h.stopped[k] {
			h.stopped[k] = true
			fresh = true
			_ = p.signal(syscall.SIGSTOP)
		}
	}
	return fresh
}

// kill reports whether there was anything that was not killed before.
func (h *hunt) kill(alive []process) (fresh bool) {
	for _, p := range alive {
		err := p.signal(syscall.SIGKILL)
		since, again := h.killed[p.key()]
		switch {
		case !again:
			h.killed[p.key()] = time.Now()
			fresh = true
		case time.Since(since) > patience:
			h.killed[p.key()] = since.Add(1 << 62) // once
			h.survivor(p.pid, err)
		}
	}
	return fresh
}
