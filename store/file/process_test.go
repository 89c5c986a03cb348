// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin

package file

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tenure.dev"
)

// childEnv makes the test binary a child process of one of these tests: its
// value is what to do, then the path of the register.
const childEnv = "TENURE_FILE_TEST_CHILD"

func TestMain(m *testing.M) {
	if do, path, ok := strings.Cut(os.Getenv(childEnv), " "); ok {
		if err := child(do, path); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(do, path string) error {
	switch {
	case strings.HasPrefix(do, "count:"):
		return childCount(strings.TrimPrefix(do, "count:"), path)
	case do == "refused":
		return childRefused(path)
	}
	return fmt.Errorf("unknown child %q", do)
}

// counts is the record of the counting test: Total is the sum of By.
type counts struct {
	Total int            `json:"total"`
	By    map[string]int `json:"by"`
}

// childCount increments its counter in the record until it is killed, and
// prints a line for each write that was answered.
func childCount(name, path string) error {
	ctx := context.Background()
	r, err := Open(ctx, path)
	if err != nil {
		return err
	}
	for {
		c := counts{By: map[string]int{}}
		b, v, err := r.Read(ctx)
		if err == nil {
			err = json.Unmarshal(b, &c)
		}
		if err != nil && !errors.Is(err, tenure.ErrNotExist) {
			return fmt.Errorf("read: %w (%d bytes)", err, len(b))
		}
		c.Total++
		c.By[name]++
		b, err = json.Marshal(c)
		if err != nil {
			return err
		}
		switch _, err = r.Write(ctx, b, v); {
		case err == nil:
			fmt.Println("wrote")
		case !errors.Is(err, tenure.ErrConflict):
			return err
		}
	}
}

// counter is one of the writers of the test: a process after the other.
type counter struct {
	cmd             *exec.Cmd
	lines           sync.WaitGroup
	answered, kills int
	failure         string
}

func (w *counter) start(name, path string) error {
	w.cmd = exec.Command(os.Args[0])
	w.cmd.Env = append(os.Environ(), childEnv+"=count:"+name+" "+path)
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := w.cmd.Start(); err != nil {
		return err
	}
	w.lines.Go(func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			if s.Text() == "wrote" {
				w.answered++
			} else {
				w.failure = s.Text()
			}
		}
	})
	return nil
}

// kill ends the process as the kernel's out-of-memory killer would, and waits
// for what it had printed.
func (w *counter) kill() {
	w.cmd.Process.Kill()
	w.lines.Wait()
	w.cmd.Wait()
	w.kills++
}

// TestKilledWriters: no update is lost or done twice when writers are killed at
// any moment. A write that was killed before it was answered may count.
func TestKilledWriters(t *testing.T) {
	const writers, kills = 4, 40
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "x.lock")

	all := make([]*counter, writers)
	for i := range all {
		all[i] = &counter{}
		if err := all[i].start(fmt.Sprint("w", i), path); err != nil {
			t.Fatal(err)
		}
		defer func() { all[i].cmd.Process.Kill() }()
	}
	for range kills {
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond) // the fault's moment, nothing waits for it
		i := rng.IntN(writers)
		all[i].kill()
		if err := all[i].start(fmt.Sprint("w", i), path); err != nil {
			t.Fatal(err)
		}
	}
	waitForAnswers(t, path)
	for _, w := range all {
		w.kill()
	}

	r := mustOpen(t, path)
	b, v := mustRead(t, r)
	var c counts
	if err := json.Unmarshal([]byte(b), &c); err != nil {
		t.Fatalf("the record is not whole: %v: %q", err, b)
	}
	sum := 0
	for i, w := range all {
		n := c.By[fmt.Sprint("w", i)]
		sum += n
		t.Logf("w%d: %d answered, %d in the record, %d kills", i, w.answered, n, w.kills)
		switch {
		case w.failure != "":
			t.Errorf("w%d failed: %s", i, w.failure)
		case n < w.answered:
			t.Errorf("w%d: %d updates were lost", i, w.answered-n)
		case n > w.answered+w.kills:
			t.Errorf("w%d: %d updates were done twice", i, n-w.answered-w.kills)
		}
	}
	if sum != c.Total || sum == 0 {
		t.Errorf("the total is %d, the sum is %d: updates overwrote each other, or there was none", c.Total, sum)
	}
	mustWrite(t, r, "after", v)
	if got, want := names(t, r), []string{"x.lock", "x.lock.flock"}; !slices.Equal(got, want) {
		t.Errorf("after the next write the folder holds %q, want %q", got, want)
	}
}

// waitForAnswers returns when the writers have written ten times more.
func waitForAnswers(t *testing.T, path string) {
	t.Helper()
	r := mustOpen(t, path)
	total := func() int {
		var c counts
		b, _, err := r.Read(t.Context())
		if err == nil {
			err = json.Unmarshal(b, &c)
		}
		if err != nil && !errors.Is(err, tenure.ErrNotExist) {
			t.Fatal(err)
		}
		return c.Total
	}
	deadline := time.Now().Add(20 * time.Second)
	for first := total(); total() < first+10; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is written any more: a killed process still holds the lock")
		}
	}
}

// TestKilledInEachStep kills a writer, in effect, after each step of a write,
// and looks at what the next process finds.
func TestKilledInEachStep(t *testing.T) {
	for _, step := range []string{"flock", "temp", "rename"} {
		t.Run(step, func(t *testing.T) {
			r := fresh(t)
			v := mustWrite(t, r, "old", "")
			l, err := acquire(t.Context(), r.path+lockSuffix)
			if err != nil {
				t.Fatal(err)
			}
			want := "old"
			if step != "flock" {
				now, err := r.load()
				if err != nil {
					t.Fatal(err)
				}
				temp, err := r.writeTemp([]byte("new"), &now, l)
				if err != nil {
					t.Fatal(err)
				}
				if step == "rename" {
					want = "new"
					if err := r.publish(t.Context(), temp, l); err != nil {
						t.Fatal(err)
					}
				}
				temp.Close()
			}
			l.f.Close() // all that the kernel does for a process that is gone

			next := mustOpen(t, r.path)
			got, nv := mustRead(t, next)
			if got != want || (want == "old") != (nv == v) {
				t.Fatalf("the next process reads %q, %q; want %q", got, nv, want)
			}
			mustWrite(t, next, "next", nv)
			if got, want := names(t, r), []string{"x.lock", "x.lock.flock"}; !slices.Equal(got, want) {
				t.Errorf("the folder holds %q, want %q", got, want)
			}
		})
	}
}

// childRefused tries everything on a folder that it must not write, and on a
// record that it must not read. Root may do all that, and becomes somebody else.
func childRefused(path string) error {
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
			return err
		}
	}
	ctx := context.Background()
	r, err := Open(ctx, path)
	if err != nil {
		return err
	}
	_, v, err := r.Read(ctx)
	if err != nil {
		return err
	}
	_, werr := r.Write(ctx, []byte("x"), v)
	_, _, rerr := r.Sibling(".secret").Read(ctx)
	_, oerr := Open(ctx, path+".closed/x.lock")
	advice := fmt.Sprintf("give user %d read and write", os.Geteuid())
	for op, err := range map[string]error{"write": werr, "read": rerr, "open": oerr} {
		if !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), advice) {
			return fmt.Errorf("%s without permission: %w", op, err)
		}
	}
	fmt.Println("refused")
	return nil
}

func TestNoPermission(t *testing.T) {
	dir, err := os.MkdirTemp("", "tenure-file-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.Chmod(dir, 0o755) // to remove it, also without being root
		os.RemoveAll(dir)
	})
	path := filepath.Join(dir, "x.lock")
	for _, err := range []error{
		os.WriteFile(path, []byte("{}"), 0o444),
		os.WriteFile(path+".secret", []byte("{}"), 0o000),
		os.Mkdir(path+".closed", 0o000),
		os.Chmod(dir, 0o555),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=refused "+path)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "refused\n" {
		t.Fatalf("%v: %s", err, out)
	}
}
