// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tenure.dev"
)

// chaosTTL is short, so that much happens; its bound is for a leader after the
// last fault.
const (
	chaosTTL    = 2 * time.Second
	chaosCopies = 3
	chaosBound  = 15 * time.Second
)

// chaos throws faults at copies of tenure run.
type chaos struct {
	*lab
	rand   *rand.Rand
	copies [chaosCopies]*runCopy
	starts int
	held   [][]byte // records of the past that name a holder
	counts map[string]int
}

// TestChaos: whatever happens to the copies and to the file, no two commands
// are alive at once, epochs only grow, and in the end somebody leads. A few
// faults by default; TENURE_CHAOS_FAULTS and TENURE_CHAOS_SEED ask for others.
func TestChaos(t *testing.T) {
	t.Parallel()
	faults := fromEnv(t, "TENURE_CHAOS_FAULTS", 25)
	seed := fromEnv(t, "TENURE_CHAOS_SEED", int(time.Now().UnixNano()%1_000_000))
	t.Logf("seed %d, %d faults: TENURE_CHAOS_SEED=%d TENURE_CHAOS_FAULTS=%d go test -run TestChaos ./cmd/tenure", seed, faults, seed, faults)
	c := &chaos{
		lab: newLab(t, "?ttl="+chaosTTL.String()), rand: rand.New(rand.NewPCG(uint64(seed), 0)),
		counts: map[string]int{},
	}
	c.create()
	for slot := range c.copies {
		c.begin(slot)
	}
	c.leader(1, chaosBound)
	for i := range faults {
		c.fault()
		c.pause(0, 3*chaosTTL/2)
		if i%10 == 9 || i == faults-1 {
			if err := checkLives(c.lives()); err != nil {
				t.Fatalf("after %d faults: %v", i+1, err)
			}
		}
	}
	c.settle()
	c.check()
	all := c.lives()
	t.Logf("%d terms, faults: %v", len(all), c.counts)
	if want := faults / 10; len(all) < want {
		t.Errorf("%d commands have run in %d faults, want at least %d: the faults kept everybody away", len(all), faults, want)
	}
}

func fromEnv(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q: a number from 1 is needed", name, s)
	}
	return n
}

// begin starts a copy, with an identity of its own as it would get by default:
// one that comes back under its old name and is shown its own past would take
// itself for a twin. Some commands end at once when they are asked to, some take
// their time, some must be killed.
func (c *chaos) begin(slot int) {
	args := []string{"--grace", "1s", "--restart", "--", "beat"}
	switch c.rand.IntN(3) {
	case 0:
		args = append(args, "-stubborn")
	case 1:
		args = append(args, "-linger", fmt.Sprint(time.Duration(c.rand.IntN(1500))*time.Millisecond))
	}
	c.starts++
	c.copies[slot] = c.start(fmt.Sprintf("%c%d", 'a'+slot, c.starts), append(args, c.log)...)
}

// pause lets the copies go on for a random while.
func (c *chaos) pause(least, most time.Duration) {
	time.Sleep(least + time.Duration(c.rand.Int64N(int64(most-least))))
}

// victim picks a copy: mostly the one that leads, which is where it matters.
func (c *chaos) victim() int {
	if v, err := tenure.Look(c.t.Context(), c.reg); err == nil && v.State == tenure.RecordHeld && c.rand.IntN(10) < 7 {
		for slot, leads := range c.copies {
			if leads.identity == v.Record.HolderIdentity {
				return slot
			}
		}
	}
	return c.rand.IntN(len(c.copies))
}

// fault does one bad thing.
func (c *chaos) fault() {
	c.remember()
	kinds := []struct {
		name string
		do   func()
	}{
		{"kill", func() { c.replace(c.victim(), syscall.SIGKILL) }},
		{"term", func() { c.replace(c.victim(), syscall.SIGTERM) }},
		{"freeze", c.freeze},
		{"freeze", c.freeze},
		{"order", c.order},
		{"damage", c.corrupt},
		{"damage", c.corrupt},
	}
	k := kinds[c.rand.IntN(len(kinds))]
	c.counts[k.name]++
	k.do()
}

// replace ends a copy and starts it anew, a while after it has ended.
func (c *chaos) replace(slot int, s syscall.Signal) {
	c.copies[slot].signal(s)
	c.copies[slot].exit(20 * time.Second)
	c.pause(0, chaosTTL/2)
	c.begin(slot)
}

// freeze stops a copy for up to two terms; some are killed in their sleep.
func (c *chaos) freeze() {
	slot := c.victim()
	c.copies[slot].signal(syscall.SIGSTOP)
	c.pause(0, 2*chaosTTL)
	if c.rand.IntN(4) == 0 {
		c.replace(slot, syscall.SIGKILL)
		return
	}
	c.copies[slot].signal(syscall.SIGCONT)
}

// order gives an order by the command; that it is refused is no fault.
func (c *chaos) order() {
	orders := [][]string{
		{"handover", "--no-wait"},
		{"handover", "--no-wait", "--to", c.copies[c.rand.IntN(len(c.copies))].identity},
		{"release", "--no-wait"},
		{"pause", "--for", "1s"},
		{"resume"},
	}
	if v, err := tenure.Look(c.t.Context(), c.reg); err == nil {
		orders = append(orders, []string{"release", "--yes", "--force", strconv.FormatInt(v.Epoch(), 10)})
	}
	args := orders[c.rand.IntN(len(orders))]
	out, err := exec.Command("tenure", append(args, "--lock", c.url())...).CombinedOutput()
	var exit *exec.ExitError
	unknown := strings.Contains(string(out), "no such candidate") // not announced yet
	if err != nil && !unknown && (!errors.As(err, &exit) || exit.ExitCode() < exitNobody) {
		c.t.Errorf("tenure %v: %v\n%s", args, err, out)
	}
}

// remember keeps a record that names a holder, to be restored later. A
// *released* one would not do: put back under a live leader it says that the
// lock is free, which is a limit of any lock in a file.
func (c *chaos) remember() {
	b, _, err := c.reg.Read(c.t.Context())
	if err != nil {
		return
	}
	if r, err := tenure.ParseRecord(b); err == nil && !r.Released() {
		c.held = append(c.held, b)
	}
}

// corrupt does to the file what people, disks and scripts do.
func (c *chaos) corrupt() {
	b, _ := os.ReadFile(c.path)
	contents := [][]byte{nil, {}, b[:len(b)/2], []byte("{}"), []byte("null"), []byte("\x00\xff garbage")}
	if len(c.held) > 0 {
		contents = append(contents, c.held[c.rand.IntN(len(c.held))], c.held[c.rand.IntN(len(c.held))])
	}
	content := contents[c.rand.IntN(len(contents))]
	if content == nil {
		if err := os.Remove(c.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			c.t.Error(err)
		}
		return
	}
	if c.rand.IntN(2) == 0 {
		c.damage(string(content)) // in place
		return
	}
	temp := c.path + ".new"
	if err := os.WriteFile(temp, content, 0o644); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(temp, c.path); err != nil {
		c.t.Fatal(err)
	}
}

// settle waits for a command that begins to beat, or goes on, after the last
// fault.
func (c *chaos) settle() {
	begin := monotonic()
	c.await(chaosBound, "somebody leads once the faults are over", func(all []life) bool {
		return len(all) > 0 && since(begin, all[len(all)-1].last) > chaosTTL
	})
}
