// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// A Network is a network namespace, joined to this machine's by a pair of
// interfaces, whose traffic can be cut. What runs in it has one address, Addr,
// and reaches this machine at HostAddr; networks reach one another. The kernel
// removes it with the process that made it. It needs root, and the programs ip
// and nft. Its methods are safe for concurrent use.
type Network struct {
	addr, host netip.Addr
	holder     *Process

	mu sync.Mutex // one change of the rules at a time
}

// NewNetwork makes a network. Log is a file for what goes wrong in it.
func NewNetwork(log string) (_ *Network, err error) {
	// The namespace lives as long as a process in it does.
	holder, err := Start(Cmd{Path: "unshare", Args: []string{"--net", "--", "sh", "-c", "echo made; exec sleep infinity"}, Log: log})
	if err != nil {
		return nil, fmt.Errorf("testbed: make a network: %w", err)
	}
	n := &Network{holder: holder}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("testbed: make a network: %w", err)
	}
	if err := holder.Ready(startWithin, func() error {
		if its, err := os.Readlink(n.NetNS()); err != nil || its == own {
			return fmt.Errorf("no namespace of its own yet (%w)", err)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("testbed: make a network: is this root? %w", err)
	}
	for range 20 { // the addresses may be another's
		if err = n.join(); err == nil {
			return n, nil
		}
	}
	return nil, fmt.Errorf("testbed: make a network: %w", err)
}

// join connects the namespace with this machine's under addresses drawn from
// those that are set aside for measuring networks (RFC 2544).
func (n *Network) join() error {
	third, fourth := rand.IntN(256), 4*rand.IntN(64)
	n.host = netip.AddrFrom4([4]byte{198, 18, byte(third), byte(fourth + 1)})
	n.addr = netip.AddrFrom4([4]byte{198, 18, byte(third), byte(fourth + 2)})
	pid := fmt.Sprint(n.holder.PID())
	link := "tnr" + pid
	if routes, err := exec.Command("ip", "route", "get", n.addr.String()).Output(); err == nil && bytes.Contains(routes, []byte(" dev tnr")) {
		return fmt.Errorf("%v is taken", n.addr)
	}
	in := []string{"nsenter", "--net=" + n.NetNS(), "ip"}
	steps := [][]string{
		{"ip", "link", "add", link, "type", "veth", "peer", "name", inside, "netns", pid},
		{"ip", "addr", "add", n.host.String() + "/30", "dev", link},
		{"ip", "link", "set", link, "up"},
		append(in[:len(in):len(in)], "link", "set", "lo", "up"),
		append(in[:len(in):len(in)], "addr", "add", n.addr.String()+"/30", "dev", inside),
		append(in[:len(in):len(in)], "link", "set", inside, "up"),
		append(in[:len(in):len(in)], "route", "add", "default", "via", n.host.String()),
	}
	for _, s := range steps {
		if err := command("", s...); err != nil {
			_ = command("", "ip", "link", "delete", link) // it may not be there
			return err
		}
	}
	// For networks to reach one another; it ends with the interface.
	return os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/forwarding", []byte("1"), 0)
}

// inside is the name of the interface in the namespace.
const inside = "out0"

func command(input string, args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// NetNS names the namespace for [Cmd].
func (n *Network) NetNS() string { return fmt.Sprintf("/proc/%d/ns/net", n.holder.PID()) }

// Addr returns the address of what runs in the network.
func (n *Network) Addr() string { return n.addr.String() }

// HostAddr returns this machine's address as seen from the network: what is to
// be reached from there listens at it, or at all addresses.
func (n *Network) HostAddr() string { return n.host.String() }

// A Cut says which packets between a network and the rest do not pass. The
// zero Cut is a cable pulled: all of them, without a word.
type Cut struct {
	// Peers are the addresses with which traffic is cut. Default: all.
	Peers []string
	// In and Out cut what comes into, and what goes out of, the network.
	// Default: both.
	In, Out bool
	// Reject answers with a reset instead of nothing.
	Reject bool
	// Loss is how many packets in a hundred are cut. Default: all of them.
	Loss int
}

// Cut cuts, in place of any earlier cut, until [Network.Heal]. Connections stay
// open as far as their ends know. What runs inside the network reaches itself.
func (n *Network) Cut(c Cut) error {
	rules, err := c.rules()
	if err != nil {
		return err
	}
	return n.set(rules)
}

// Heal ends a cut. It may be called without one.
func (n *Network) Heal() error { return n.set("") }

// set replaces the rules, in one transaction.
func (n *Network) set(rules string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	rules = "add table inet cut\ndelete table inet cut\n" + rules
	if err := command(rules, "nsenter", "--net="+n.NetNS(), "nft", "-f", "-"); err != nil {
		return fmt.Errorf("testbed: cut or heal the network of %v: %w", n.addr, err)
	}
	return nil
}

func (c Cut) rules() (string, error) {
	if c.Loss < 0 || c.Loss > 100 {
		return "", fmt.Errorf("testbed: cut %d packets in a hundred: use 1 to 100, or 0 for all", c.Loss)
	}
	for _, p := range c.Peers {
		if _, err := netip.ParseAddr(p); err != nil {
			return "", fmt.Errorf("testbed: cut a peer: %w", err)
		}
	}
	both := !c.In && !c.Out
	var b strings.Builder
	b.WriteString("table inet cut {\n")
	chain := func(hook, device, peer string) {
		match := device + " " + inside
		if len(c.Peers) > 0 {
			match += fmt.Sprintf(" %s { %s }", peer, strings.Join(c.Peers, ", "))
		}
		if c.Loss%100 > 0 {
			match += fmt.Sprintf(" numgen random mod 100 < %d", c.Loss)
		}
		fmt.Fprintf(&b, "chain %s {\ntype filter hook %[1]s priority 0\npolicy accept\n", hook)
		if c.Reject {
			fmt.Fprintf(&b, "%s meta l4proto tcp reject with tcp reset\n%[1]s reject\n", match)
		} else {
			fmt.Fprintf(&b, "%s drop\n", match)
		}
		b.WriteString("}\n")
	}
	if c.In || both {
		chain("input", "iifname", "ip saddr")
	}
	if c.Out || both {
		chain("output", "oifname", "ip daddr")
	}
	b.WriteString("}\n")
	return b.String(), nil
}

// Close removes the network. What still runs in it keeps it, without a way
// out. It may be called again.
func (n *Network) Close() {
	n.holder.Kill()
	// Gone with the namespace, but that the kernel does in its own time.
	_ = command("", "ip", "link", "delete", fmt.Sprintf("tnr%d", n.holder.PID()))
}
