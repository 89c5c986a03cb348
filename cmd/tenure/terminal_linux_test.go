// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"tenure.dev"
)

// terminal opens a pseudo-terminal: the person's end, and the program's.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	var number, unlock int32
	for request, arg := range map[uintptr]*int32{syscall.TIOCGPTN: &number, syscall.TIOCSPTLCK: &unlock} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, person.Fd(), request, uintptr(unsafe.Pointer(arg))); errno != 0 {
			t.Fatal(errno)
		}
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

// TestConfirm: taking a lock by force says what is at risk, and asks.
func TestConfirm(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]int{"yes\n": 0, "no\n": exitRefused, "\n": exitRefused} {
		l := newLab(t, "")
		l.damage(`{"holderIdentity":"x","leaseDurationSeconds":2,"epoch":5,"nonce":"n"}`)
		person, program := terminal(t)
		cmd := exec.Command("tenure", "release", "--lock", l.url(), "--force", "5", "--holder-is-dead")
		var out bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = program, &out, program
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := make([]byte, 4096)
		n := 0
		for !strings.Contains(string(said[:n]), "type yes to go on:") {
			m, err := person.Read(said[n:])
			if err != nil {
				t.Fatalf("%v after %q", err, said[:n])
			}
			n += m
		}
		if !strings.Contains(string(said[:n]), "IF IT IS ALIVE, TWO WILL LEAD") {
			t.Errorf("the risk is not named: %q", said[:n])
		}
		if v := l.look(); v.State != tenure.RecordHeld {
			t.Errorf("the lock is %s before the answer", v.State)
		}
		fmt.Fprint(person, answer)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("after %q it exits with %d, want %d", answer, code, want)
		}
		if v := l.look(); (v.State == tenure.RecordReleased) != (want == 0) {
			t.Errorf("after %q the lock is %s", answer, v.State)
		}
	}
}

// TestLogReaderGone: that nobody reads the log any more is no reason to end.
func TestLogReaderGone(t *testing.T) {
	t.Parallel()
	l := newLab(t, "?ttl=2s")
	l.create()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("tenure", "run", "-v", "--lock", l.url(), "--", "beat", l.log)
	cmd.Stderr, cmd.SysProcAttr = writer, dieWithTest()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	reader.Close()
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	first := l.leader(1, 5*time.Second)
	l.await(10*time.Second, "the command lives on", func(all []life) bool {
		return since(first.first, all[0].last) > 3*time.Second
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ended = true
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("tenure exits with %d, want 0", code)
	}
	l.check()
}
