// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"time"

	"tenure.dev/test/testbed"
)

// Elector starts a stock controller, which is started again when it ends, as a pod
// would be.
func (s *Site) Elector(name string, more ...string) error {
	return s.ElectorAt(0, s.lab.Opt.Elector, name, more...)
}

// ElectorAt is Elector with the API server that it uses, and its program.
func (s *Site) ElectorAt(server int, program, name string, more ...string) error {
	kubeconfig, err := s.Cluster.Kubeconfig(server, "ctl", "system:authenticated")
	if err != nil {
		return err
	}
	o := s.lab.Opt
	e := &elector{stop: make(chan struct{}), over: make(chan struct{})}
	begin := func() (*testbed.Process, error) {
		s.n++
		e.id = fmt.Sprintf("%s/%s.%d", s.Name, name, s.n)
		args := []string{
			"-kubeconfig", kubeconfig, "-id", e.id, "-namespace", o.Namespace, "-receiver", s.lab.Receiver.Addr(),
			"-lease-duration", o.Lease.String(), "-renew-deadline", o.Renew.String(), "-retry-period", o.Retry.String(),
		}
		return testbed.Start(testbed.Cmd{Path: program, Args: append(args, more...), Log: s.LogFile(name)})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.proc, err = begin(); err != nil {
		return err
	}
	s.electors[name] = e
	go func() {
		defer close(e.over)
		for {
			s.mu.Lock()
			p := e.proc
			s.mu.Unlock()
			select {
			case <-p.Done():
			case <-e.stop:
				if e.gently {
					p.Stop(30 * time.Second)
				}
				p.Kill()
				return
			}
			select {
			case <-time.After(time.Second):
			case <-e.stop:
				return
			}
			s.mu.Lock()
			next, err := begin()
			if err == nil {
				e.proc = next
			}
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return nil
}

// ElectorProcess returns the running process of an elector, and its identity.
func (s *Site) ElectorProcess(name string) (*testbed.Process, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.electors[name]
	return e.proc, e.id
}

// Running returns the process of that identity, nil if it has ended.
func (s *Site) Running(id string) *testbed.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.electors {
		if e.id == id {
			return e.proc
		}
	}
	return nil
}

// Freeze stops an elector's process by a signal, and returns what lets it go on.
func (s *Site) Freeze(id string) (thaw func() error, err error) {
	p := s.Running(id)
	if p == nil {
		return nil, fmt.Errorf("e2e: %s does not run", id)
	}
	s.lab.Receiver.Paused(id)
	if err := p.Pause(); err != nil {
		return nil, err
	}
	return func() error {
		s.lab.Receiver.Resumed(id)
		return p.Resume()
	}, nil
}

// StopElectors kills all electors of the site.
func (s *Site) StopElectors() { s.stopElectors(false) }

// EndElectors asks all electors of the site to end, as when they are scaled down.
func (s *Site) EndElectors() { s.stopElectors(true) }

func (s *Site) stopElectors(gently bool) {
	s.mu.Lock()
	all := make([]*elector, 0, len(s.electors))
	for _, e := range s.electors {
		e.gently = gently
		all = append(all, e)
	}
	clear(s.electors)
	s.mu.Unlock()
	for _, e := range all {
		e.once.Do(func() { close(e.stop) })
		<-e.over
	}
}
