// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The test binary plays every part: the watchdog, a stand-in for tenure, and
// the commands.
const (
	roleVar    = "SUPERVISE_TEST_ROLE"    // what to be, with its arguments
	markVar    = "SUPERVISE_TEST_MARK"    // in every process of a test
	hangVar    = "SUPERVISE_TEST_HANG"    // a watchdog that does nothing
	standInVar = "SUPERVISE_TEST_STANDIN" // what a stand-in does
)

// busy keeps a loop that only uses the processor from being optimised away.
var busy atomic.Int64

func init() {
	// Package main's goroutine keeps the main thread, which headless ends.
	if strings.HasPrefix(os.Getenv(roleVar), "headless") {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(marker) != "" && os.Getenv(hangVar) != "" {
		time.Sleep(time.Minute)
	}
	Watchdog()
	if role := strings.Fields(os.Getenv(roleVar)); len(role) > 0 {
		play(role[0], role[1:])
		os.Exit(0)
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // a second for each process, otherwise
	os.Exit(m.Run())
}

func play(role string, args []string) {
	switch role {
	case "tenure":
		standIn()
	case "beat":
		beat(args[0])
	case "tree":
		// One in the group, one in a session of its own, one that forked twice.
		child("beat "+args[0], false)
		child("beat "+args[0], true)
		child("orphan "+args[0], true)
		beat(args[0])
	case "orphan":
		child("beat "+args[0], true)
	case "daemon": // leaves one behind and exits
		child("orphan "+args[0], true).Wait()
		waitFor(func() bool { return len(readBeats(args[0])) > 0 })
		os.Exit(3)
	case "deaf":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		beat(args[0])
	case "stopped":
		child("beat "+args[0], true)
		waitFor(func() bool { return len(readBeats(args[0])) > 0 })
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		select {} // the stop may take another thread first
	case "headless": // its main thread ends, the others go on
		go beat(args[0])
		syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
	case "busy":
		for range 3 * runtime.NumCPU() {
			go func() {
				for n := 0; ; n++ {
					busy.Store(int64(n))
				}
			}()
		}
		beat(args[0])
	}
}

func child(role string, session bool) *exec.Cmd {
	cmd := exec.Command(testBinary())
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return cmd
}

func testBinary() string {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return exe
}

// A beatRecord says that pid lived at an instant of bootNow's clock.
type beatRecord struct{ PID, At int64 }

// beat writes a record each millisecond until it is killed.
func beat(file string) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		panic(err)
	}
	for range time.Tick(time.Millisecond) {
		b, _ := binary.Append(nil, binary.LittleEndian, beatRecord{int64(os.Getpid()), bootNow()})
		if _, err := f.Write(b); err != nil {
			panic(err)
		}
	}
}

func readBeats(file string) []beatRecord {
	b, _ := os.ReadFile(file)
	beats := make([]beatRecord, len(b)/binary.Size(beatRecord{}))
	if _, err := binary.Decode(b, binary.LittleEndian, beats); err != nil {
		return nil
	}
	return beats
}

// beaters are the processes that wrote to file.
func beaters(file string) map[int]bool {
	pids := map[int]bool{}
	for _, b := range readBeats(file) {
		pids[int(b.PID)] = true
	}
	return pids
}

func lastBeat(file string) int64 {
	var last int64
	for _, b := range readBeats(file) {
		last = max(last, b.At)
	}
	return last
}

// waitFor polls for what real processes will do; the limit only ends a test
// that fails.
func waitFor(ok func() bool) bool {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

// standInSpec is what a stand-in for tenure does.
type standInSpec struct {
	TTL, Margin, Renew time.Duration // Renew 0: never
}

// standIn runs the command in its arguments, and tells on its output what it
// does: "started CHILD WATCHDOG", "deadline NS", "ended CODE CAUSE".
func standIn() {
	var s standInSpec
	if err := json.Unmarshal([]byte(os.Getenv(standInVar)), &s); err != nil {
		panic(err)
	}
	env := append(os.Environ(), roleVar+"="+os.Getenv("SUPERVISE_TEST_CHILD"))
	term := func() time.Time {
		deadline := time.Now().Add(s.TTL)
		fmt.Println("deadline", bootNow()+int64(time.Until(deadline)))
		return deadline
	}
	p, err := Start(context.Background(), Spec{
		Argv: []string{testBinary()}, Env: env, Stderr: os.Stderr, Deadline: term(), Margin: s.Margin,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("started", p.Pid(), p.watchdog.Process.Pid)
	var renew <-chan time.Time
	if s.Renew > 0 {
		renew = time.Tick(s.Renew)
	}
	for {
		select {
		case <-renew:
			p.Extend(term())
		case <-p.Done():
			r := p.Wait()
			fmt.Println("ended", r.ExitCode(), r.Cause)
			return
		}
	}
}

// A stand is a running stand-in.
type stand struct {
	*exec.Cmd
	lines           *bufio.Scanner
	child, watchdog int
	deadline        atomic.Int64 // the last it told
	ended           chan string  // what it told of the end; closed with its output
}

func startStand(t *testing.T, mark, role string, s standInSpec) *stand {
	t.Helper()
	spec, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	st := &stand{Cmd: exec.Command(testBinary()), ended: make(chan string, 1)}
	st.Env = append(os.Environ(), mark, roleVar+"=tenure", "SUPERVISE_TEST_CHILD="+role, standInVar+"="+string(spec))
	st.Stderr = os.Stderr
	out, err := st.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Process.Kill(); st.Wait() })
	started := make(chan bool)
	go st.read(out, started)
	if !<-started {
		t.Fatal("the stand-in started nothing")
	}
	return st
}

func (st *stand) read(out io.Reader, started chan<- bool) {
	defer close(st.ended)
	defer close(started)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "deadline":
			n, _ := strconv.ParseInt(rest, 10, 64)
			st.deadline.Store(n)
		case "started":
			fmt.Sscan(rest, &st.child, &st.watchdog)
			started <- true
		case "ended":
			st.ended <- rest
		}
	}
}

// newMark returns an environment entry that all processes of a test carry, and
// makes the test fail if one is left at its end.
func newMark(t *testing.T) string {
	mark := fmt.Sprintf("%s=%s-%d-%d", markVar, strings.ReplaceAll(t.Name(), "/", "-"), os.Getpid(), time.Now().UnixNano())
	t.Cleanup(func() {
		if !waitFor(func() bool { return len(marked(mark)) == 0 }) {
			left := marked(mark)
			t.Errorf("left behind: %v", left)
			for _, pid := range left {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		// Start made this process a subreaper: watchdogs of stand-ins that were
		// killed come here.
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && err != syscall.EINTR {
				return
			}
		}
	})
	return mark
}

// marked returns the living processes with mark in their environment.
func marked(mark string) (pids []int) {
	files, _ := filepath.Glob("/proc/[1-9]*/environ")
	for _, f := range files {
		env, _ := os.ReadFile(f)
		for entry := range bytes.SplitSeq(env, []byte{0}) {
			if string(entry) == mark {
				pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// specFor is a command that plays role, under a term of ttl.
func specFor(mark, role string, ttl time.Duration) Spec {
	return Spec{
		Argv: []string{testBinary()}, Env: append(os.Environ(), mark, roleVar+"="+role), Stderr: os.Stderr,
		Deadline: time.Now().Add(ttl), Margin: testMargin, Log: slog.New(slog.DiscardHandler),
	}
}

// shell is a command for sh.
func shell(mark, script string) Spec {
	s := specFor(mark, "", time.Minute)
	s.Argv = []string{"sh", "-c", script}
	return s
}

func mustStart(t *testing.T, s Spec) *Proc {
	t.Helper()
	p, err := Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill(); p.Wait() })
	return p
}

// none fails the test if a marked process is alive now.
func none(t *testing.T, mark string) {
	t.Helper()
	if left := marked(mark); len(left) > 0 {
		t.Errorf("still alive after Wait: %v", left)
	}
}
