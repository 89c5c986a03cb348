// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Package testbed finds, starts and stops the real servers that tests run
// against. build.sh beside it builds them.
package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Bin returns the path of a program that build.sh has built, by its name. The
// error says how to build it.
func Bin(name string) (string, error) {
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("testbed: no cache folder: %w", err)
		}
		cache = filepath.Join(home, ".cache")
	}
	link := filepath.Join(cache, "tenure", "testbed", "bin", name)
	path, err := filepath.EvalSymlinks(link)
	if err != nil {
		return "", fmt.Errorf("testbed: %s has not been built: run make testbed, or test/testbed/build.sh %s: %w", name, name, err)
	}
	return path, nil
}

// FreePort returns a TCP port of the loopback interface that was free just now.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("testbed: find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// startWithin bounds the start of what takes milliseconds on a free machine.
const startWithin = 10 * time.Second

// Cmd says what to run.
type Cmd struct {
	// Path is the program, Args its arguments without the program's name.
	Path string
	Args []string
	// Dir is where it runs; Env is added to this process' environment.
	Dir string
	Env []string
	// Log is the file that its output is appended to.
	Log string
	// UID and GID are whom it runs as, when not 0.
	UID, GID uint32
	// Host, when set, is its own host name, in a UTS namespace of its own.
	Host string
	// NetNS, when set, is the network namespace that it runs in: a name that ip
	// netns knows, or a path, as [Network.NetNS] returns.
	NetNS string
}

// A Process is a running server. Its methods are safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}

	mu  sync.Mutex
	err error
}

// Start starts a server. It dies with this process, also when that is killed:
// nothing is left behind.
func Start(c Cmd) (*Process, error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("testbed: start %s: %w", filepath.Base(c.Path), err)
	}
	defer log.Close()
	path, args := c.Path, c.Args
	if c.Host != "" { // setting the name needs the namespace first
		path, args = wrap(path, args, "unshare", "--uts", "--", "sh", "-c", `hostname "$1" && shift && exec "$@"`, "sh", c.Host)
	}
	if strings.Contains(c.NetNS, "/") {
		path, args = wrap(path, args, "nsenter", "--net="+c.NetNS, "--")
	} else if c.NetNS != "" {
		path, args = wrap(path, args, "ip", "netns", "exec", c.NetNS)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Env = c.Dir, append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = deathSignal()
	if c.UID != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID}
	}
	p := &Process{cmd: cmd, log: c.Log, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal follows the thread that started the child: it must
		// not end before this process does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("testbed: start %s: %w", filepath.Base(c.Path), err)
	}
	return p, nil
}

func wrap(path string, args []string, with ...string) (string, []string) {
	return with[0], append(append(with[1:len(with):len(with)], path), args...)
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill kills it, stopped or not, and waits until it is gone. It may be called
// again.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// Stop asks it to end with SIGTERM, waits at most grace, and then kills it.
func (p *Process) Stop(grace time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.Kill()
	}
}

// Pause freezes it with SIGSTOP and returns when each of its threads stands
// still, some milliseconds. Resume lets it go on.
func (p *Process) Pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for p.Err() == nil && !stopped(p.PID()) {
		time.Sleep(time.Millisecond)
	}
	return nil
}

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Signal sends it a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Err returns how it ended, nil as long as it runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	return errors.New("it ended with success")
}

// Ready calls check until it returns nil. It fails when the process ends or the
// time is up, with the end of the process' output.
func (p *Process) Ready(within time.Duration, check func() error) error {
	deadline := time.Now().Add(within)
	for {
		err := check()
		switch {
		case err == nil:
			return nil
		case p.Err() != nil:
			return fmt.Errorf("testbed: %s ended before it was ready: %w\n%s", filepath.Base(p.cmd.Path), p.Err(), p.Tail(2048))
		case time.Now().After(deadline):
			return fmt.Errorf("testbed: %s is not ready after %v: %w\n%s", filepath.Base(p.cmd.Path), within, err, p.Tail(2048))
		}
		time.Sleep(25 * time.Millisecond)
	}
}

// Tail returns the last n bytes of its output.
func (p *Process) Tail(n int) string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(b) > n {
		b = b[len(b)-n:]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}

// Dial is a check for [Process.Ready]: something listens at a loopback port.
func Dial(port int) func() error {
	return func() error {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}
}
