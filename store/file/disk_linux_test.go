// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tenure.dev"
)

// asRoot reports whether the test may mount. If not, it has run the test again
// as the root of a namespace of its own, and reported the outcome.
func asRoot(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() == 0 {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("not root, and not in a namespace of its own either: run this test as root: %v\n%s", err, out)
	}
	return false
}

// smallDisk mounts a file system of 64 kB and returns its folder.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tenure-test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes to a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 512)); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestFullDisk(t *testing.T) {
	if !asRoot(t) {
		return
	}
	dir := smallDisk(t)
	r := mustOpen(t, filepath.Join(dir, "x.lock"))
	filler := filepath.Join(dir, "filler")

	fill(t, filler)
	checkFull := func(what string, old tenure.Version) {
		t.Helper()
		_, err := r.Write(t.Context(), []byte("new"), old)
		for _, w := range []string{r.path, "nothing was written", "free some space"} {
			if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), w) {
				t.Fatalf("%s on a full disk: %v, want ENOSPC and %q", what, err, w)
			}
		}
	}
	checkFull("create", "")
	if _, _, err := r.Read(t.Context()); !errors.Is(err, tenure.ErrNotExist) {
		t.Fatalf("after a failed create: %v, want ErrNotExist", err)
	}

	os.Remove(filler)
	v := mustWrite(t, r, "old", "")
	fill(t, filler)
	for range 3 {
		checkFull("write", v)
		if got, rv := mustRead(t, r); got != "old" || rv != v {
			t.Fatalf("after a failed write: %q, %q; want old, %q", got, rv, v)
		}
	}
	if got, want := names(t, r), []string{"filler", "x.lock", "x.lock.flock"}; !slices.Equal(got, want) {
		t.Fatalf("the folder holds %q, want %q", got, want)
	}
	os.Remove(filler)
	mustWrite(t, r, "new", v)
}

func TestReadOnlyDisk(t *testing.T) {
	if !asRoot(t) {
		return
	}
	dir := smallDisk(t)
	r := mustOpen(t, filepath.Join(dir, "x.lock"))
	v := mustWrite(t, r, "old", "")
	remount := func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("tenure-test", dir, "tmpfs", syscall.MS_REMOUNT|flags, "size=64k"); err != nil {
			t.Fatal(err)
		}
	}
	remount(syscall.MS_RDONLY)
	_, err := mustOpen(t, r.path).Write(t.Context(), []byte("new"), v)
	for _, w := range []string{r.path, "nothing was written", "read-only", "remount"} {
		if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), w) {
			t.Fatalf("write on a read-only disk: %v, want EROFS and %q", err, w)
		}
	}
	if got, rv := mustRead(t, r); got != "old" || rv != v {
		t.Fatalf("after it: %q, %q; want old, %q", got, rv, v)
	}
	remount(0)
	mustWrite(t, r, "new", v)
}

func TestStatfs(t *testing.T) {
	for _, tt := range []struct {
		path string
		err  error
	}{{t.TempDir(), nil}, {"/no/such/folder", syscall.ENOENT}} {
		name, remote, err := statfs(tt.path)
		if name != "" || remote || !errors.Is(err, tt.err) {
			t.Errorf("%s: %q, %v, %v; want a local file system, %v", tt.path, name, remote, err, tt.err)
		}
	}
	for _, magic := range []uint32{0x6969, 0x517b, 0xff534d42, 0xfe534d42, 0x01021997, 0x65735546, 0x00c36400, 0x5346414f, 0x01161970, 0x7461636f, 0x0bd00bd0} {
		if sharedFileSystems[magic] == "" {
			t.Errorf("%#x is not refused", magic)
		}
	}
	for _, magic := range []uint32{0xef53, 0x58465342, 0x9123683e, 0x794c7630, 0x01021994, 0x2fc12fc1} {
		if name := sharedFileSystems[magic]; name != "" {
			t.Errorf("%#x, a local file system, is refused as %s", magic, name)
		}
	}
}
