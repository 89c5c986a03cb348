// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

// Command up runs two clusters from source on this machine, with Tenure and an
// ordinary controller in each, a bucket that both reach for the lock, and a receiver
// outside of both that the controllers write to. It is what make up and make down
// call.
//
//	up start DIR   starts all of it in the background, and says what to try
//	up stop DIR    ends it, and removes DIR
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "up:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: up start|stop DIR")
	}
	dir, err := filepath.Abs(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "start":
		return start(dir)
	case "serve": // what start runs in the background
		return serve(dir)
	case "stop":
		return stop(dir)
	default:
		return fmt.Errorf("unknown word %q: start or stop", args[0])
	}
}

// The files by which start, serve and stop find each other.
const (
	pidFile      = "pid"
	progressFile = "progress"
	logFile      = "up.log"
	ready        = "READY"
)

func start(dir string) error {
	if pid, alive := running(dir); alive {
		return fmt.Errorf("it is up already (process %d): make down ends it", pid)
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, logFile))
	if err != nil {
		return err
	}
	defer log.Close()
	progress, err := os.Create(filepath.Join(dir, progressFile))
	if err != nil {
		return err
	}
	defer progress.Close()
	cmd := exec.Command(self, "serve", dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, pidFile), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return follow(filepath.Join(dir, progressFile), filepath.Join(dir, logFile), ended)
}

// follow prints progress until all is ready.
func follow(path, log string, ended <-chan error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	part := ""
	for {
		line, err := lines.ReadString('\n')
		part += line
		if err == nil {
			if strings.TrimSpace(part) == ready {
				return nil
			}
			fmt.Print(part)
			part = ""
			continue
		}
		select {
		case err := <-ended:
			tail, _ := os.ReadFile(log) //nolint:errcheck // for people
			return fmt.Errorf("it ended before it was ready: %w\n%s", err, tail[max(0, len(tail)-3000):])
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// running returns the process that serves dir, if it is alive and ours.
func running(dir string) (int, bool) {
	b, err := os.ReadFile(filepath.Join(dir, pidFile))
	if err != nil {
		return 0, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, false
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return pid, err == nil && strings.Contains(string(cmdline), "serve\x00"+dir)
}

func stop(dir string) error {
	pid, alive := running(dir)
	if !alive {
		if _, err := os.Stat(filepath.Join(dir, pidFile)); errors.Is(err, fs.ErrNotExist) {
			fmt.Println("nothing is up")
			return nil
		}
		return os.RemoveAll(dir)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); alive; _, alive = running(dir) {
		if time.Now().After(end) {
			return fmt.Errorf("process %d has not ended after a minute", pid)
		}
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Println("down")
	return os.RemoveAll(dir)
}
