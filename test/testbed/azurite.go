// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"fmt"
	"net/http"
	"path/filepath"
	"time"
)

// The account of every Azurite. Both are published, neither is a secret.
const (
	AzuriteAccount = "devstoreaccount1"
	AzuriteKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// An Azurite is an emulator of Azure Blob Storage that keeps blobs in memory.
type Azurite struct {
	*Process
	// Host is its address, "127.0.0.1:port".
	Host string
	// Endpoint is its blob endpoint, with the account.
	Endpoint string
	// Env are the credentials for its account, for a process' environment.
	Env []string
}

// AzuriteTLS are the files of a certificate and its key. With them an Azurite
// speaks https only and accepts the tokens of any issuer.
type AzuriteTLS struct{ Cert, Key string }

// StartAzurite starts an Azurite on a free loopback port and waits until it
// answers, with its log in dir. It has no container yet.
func StartAzurite(dir string, files AzuriteTLS) (*Azurite, error) {
	bin, err := Bin("azurite-blob")
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	args := []string{"--blobHost", "127.0.0.1", "--blobPort", fmt.Sprint(port),
		"--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"}
	scheme := "http"
	if files.Cert != "" {
		scheme = "https"
		args = append(args, "--cert", files.Cert, "--key", files.Key, "--oauth", "basic")
	}
	p, err := Start(Cmd{Path: bin, Args: args, Dir: dir, Log: filepath.Join(dir, fmt.Sprintf("azurite-%d.log", port))})
	if err != nil {
		return nil, err
	}
	a := &Azurite{Process: p, Host: fmt.Sprintf("127.0.0.1:%d", port), Env: []string{"AZURE_STORAGE_KEY=" + AzuriteKey}}
	a.Endpoint = scheme + "://" + a.Host + "/" + AzuriteAccount
	if err := p.Ready(30*time.Second, a.ready(port, files)); err != nil {
		p.Kill()
		return nil, err
	}
	return a, nil
}

// ready is a check that what listens is an Azurite, not a process that took the
// port before it.
func (a *Azurite) ready(port int, files AzuriteTLS) func() error {
	if files.Cert != "" {
		return Dial(port)
	}
	return func() error {
		resp, err := http.Get(a.Endpoint + "?comp=list")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.Header.Get("x-ms-request-id") == "" {
			return fmt.Errorf("what answers at %s is no Azurite: %s", a.Host, resp.Status)
		}
		return nil
	}
}

// URL returns the lock URL of a blob in a container.
func (a *Azurite) URL(container, blob string) string {
	return "azblob://" + container + "/" + blob + "?endpoint=" + a.Endpoint
}
