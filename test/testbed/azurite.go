// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
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
	if err := p.Ready(30*time.Second, a.ready); err != nil {
		p.Kill()
		return nil, err
	}
	return a, nil
}

// azuriteClient asks an Azurite on loopback: its certificate is the test's own.
var azuriteClient = &http.Client{
	Timeout:   10 * time.Second,
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
}

// ready is a check that what listens is an Azurite, not a process that took the
// port before it.
func (a *Azurite) ready() error {
	resp, err := azuriteClient.Get(a.Endpoint + "?comp=list")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.Header.Get("x-ms-request-id") == "" {
		return fmt.Errorf("what answers at %s is no Azurite: %s", a.Host, resp.Status)
	}
	return nil
}

// CreateContainer makes a container; it is fine if there is one.
func (a *Azurite) CreateContainer(name string) error {
	r, err := http.NewRequest(http.MethodPut, a.Endpoint+"/"+name+"?restype=container", nil)
	if err != nil {
		return fmt.Errorf("testbed: create container %s: %w", name, err)
	}
	const version = "2021-12-02"
	date := time.Now().UTC().Format(http.TimeFormat)
	r.Header.Set("x-ms-date", date)
	r.Header.Set("x-ms-version", version)
	key, err := base64.StdEncoding.DecodeString(AzuriteKey)
	if err != nil {
		return fmt.Errorf("testbed: the key of every Azurite: %w", err)
	}
	mac := hmac.New(sha256.New, key)
	// The method, eleven empty header fields, those of the service, the resource.
	fmt.Fprintf(mac, "PUT%sx-ms-date:%s\nx-ms-version:%s\n/%s%s\nrestype:container", strings.Repeat("\n", 12), date, version, AzuriteAccount, r.URL.Path)
	r.Header.Set("Authorization", "SharedKey "+AzuriteAccount+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	resp, err := azuriteClient.Do(r)
	if err != nil {
		return fmt.Errorf("testbed: create container %s: %w", name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusConflict {
		return fmt.Errorf("testbed: create container %s: %s", name, resp.Status)
	}
	return nil
}

// URL returns the lock URL of a blob in a container.
func (a *Azurite) URL(container, blob string) string { return a.URLVia(a.Host, container, blob) }

// URLVia returns it with requests going to another host, such as a proxy's.
func (a *Azurite) URLVia(host, container, blob string) string {
	return "azblob://" + container + "/" + blob + "?endpoint=" + strings.Replace(a.Endpoint, a.Host, host, 1)
}
