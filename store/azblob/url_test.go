// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package azblob

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"tenure.dev"
	"tenure.dev/test/testbed"
)

const testKey = "c2VjcmV0" // what the tests of messages look for

// TestURL opens right URLs and refuses wrong ones, saying how to write them.
func TestURL(t *testing.T) {
	long := strings.Repeat("x", 1025)
	for _, tt := range []struct {
		url string
		// endpoint and account are what it stands for; says is what the error says.
		endpoint, account string
		says              []string
	}{
		{"azblob://locks/a/b.lock?account=acct", "https://acct.blob.core.windows.net", "acct", nil},
		{"azblob://locks/a?account=acct&endpoint=https://acct.blob.core.usgovcloudapi.net/", "https://acct.blob.core.usgovcloudapi.net", "acct", nil},
		{"azblob://locks/a?endpoint=https://acct.blob.core.windows.net", "https://acct.blob.core.windows.net", "acct", nil},
		{"azblob://locks/a?endpoint=https://acct.z7.blob.storage.azure.net", "https://acct.z7.blob.storage.azure.net", "acct", nil},
		{"azblob://locks/a?endpoint=http://127.0.0.1:10000/acct", "http://127.0.0.1:10000/acct", "acct", nil},
		{"azblob://locks/a?endpoint=http://127.0.0.1:10000&account=acct", "http://127.0.0.1:10000/acct", "acct", nil},
		{"azblob://locks/a?endpoint=http://localhost:10000&account=acct", "http://localhost:10000/acct", "acct", nil},
		{"azblob://locks/a?endpoint=https://blobs.example.test&account=acct", "https://blobs.example.test", "acct", nil},
		{"azblob://locks/a?account=acct&ttl=5s&renew=1s", "https://acct.blob.core.windows.net", "acct", nil},

		{"azblob:///a?account=acct", "", "", []string{"names no container", "azblob://container/path"}},
		{"azblob://locks?account=acct", "", "", []string{"names no blob"}},
		{"azblob://locks/?account=acct", "", "", []string{"names no blob"}},
		{"azblob://locks/a", "", "", []string{"no storage account", "account=name", "two locks"}},
		{"azblob://acct.blob.core.windows.net/locks/a", "", "", []string{"account's host"}},
		{"azblob://Locks/a?account=acct", "", "", []string{`"Locks" is no container`, "lower-case"}},
		{"azblob://lo--cks/a?account=acct", "", "", []string{"no container's name"}},
		{"azblob://lo/a?account=acct", "", "", []string{"3 to 63"}},
		{"azblob://locks:80/a?account=acct", "", "", []string{"no container's name"}},
		{"azblob://a,b/a?account=acct", "", "", []string{"no container's name"}},
		{"azblob://locks/a/?account=acct", "", "", []string{"slash"}},
		{"azblob://locks/a//b?account=acct", "", "", []string{"slash"}},
		{"azblob://locks//a?account=acct", "", "", []string{"slash"}},
		{"azblob://locks/../a?account=acct", "", "", []string{"dot"}},
		{"azblob://locks/a.?account=acct", "", "", []string{"dot"}},
		{"azblob://locks/a%5Cb?account=acct", "", "", []string{`use '/'`}},
		{"azblob://locks/" + long + "?account=acct", "", "", []string{"1024"}},
		{"azblob://locks/" + strings.Repeat("a/", 254) + "a?account=acct", "", "", []string{"254"}},
		{"azblob://locks/a?account=Acct", "", "", []string{"account", "lower-case"}},
		{"azblob://locks/a?account=ac", "", "", []string{"3 to 24"}},
		{"azblob://locks/a?account=", "", "", []string{"no storage account"}},
		{"azblob://locks/a?account=acct-secondary", "", "", []string{"secondary", "lags behind"}},
		{"azblob://locks/a?account=acct&endpoint=https://acct-secondary.blob.core.windows.net", "", "", []string{"secondary"}},
		{"azblob://locks/a?endpoint=https://acct-secondary.blob.core.windows.net", "", "", []string{"secondary"}},
		{"azblob://locks/a?account=acct&endpoint=https://other.blob.core.windows.net", "", "", []string{"which one"}},
		{"azblob://locks/a?account=acct&endpoint=http://127.0.0.1:1/other", "", "", []string{"which one"}},
		{"azblob://locks/a?account=acct&endpoint=acct.blob.core.windows.net", "", "", []string{"endpoint", "no URL"}},
		{"azblob://locks/a?account=acct&endpoint=ftp://x", "", "", []string{"no URL"}},
		{"azblob://locks/a?account=acct&endpoint=https://x.test/acct/locks", "", "", []string{"more than an account"}},
		{"azblob://locks/a?account=acct&endpoint=https://x.test%3Fsv%3D1%26sig%3D" + testKey, "", "", []string{envSAS}},
		{"azblob://locks/a?account=acct&endpoint=https://u:" + testKey + "%40x.test", "", "", []string{"credentials"}},
		{"azblob://acct:" + testKey + "@locks/a", "", "", []string{"credentials do not belong"}},
		{"azblob://locks/a?account=acct&key=" + testKey, "", "", []string{`"key"`, "endpoint"}},
		{"azblob://locks/a?acount=acct", "", "", []string{"acount", "account"}},
	} {
		t.Setenv(envKey, testKey)
		lock, err := tenure.Open(t.Context(), tt.url, tenure.Vars{})
		if tt.says != nil {
			mustSay(t, err, tt.says...)
			if !errors.Is(err, tenure.ErrURL) {
				t.Errorf("%s: %v does not wrap ErrURL", tt.url, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		p := lock.Register.(*Register).store.place
		if p.endpoint.String() != tt.endpoint || p.account != tt.account || p.container != "locks" {
			t.Errorf("%s: endpoint %v, account %s, container %s; want %s, %s, locks", tt.url, p.endpoint, p.account, p.container, tt.endpoint, tt.account)
		}
	}
}

// FuzzURL looks for a URL that is accepted and then makes a request to another
// place than its own.
func FuzzURL(f *testing.F) {
	for _, s := range []string{"azblob://locks/a?account=acct", "azblob://locks/a%2Fb%20c?endpoint=http://127.0.0.1:1/acct", "azblob://locks/%3F%23?account=acct"} {
		f.Add(s)
	}
	f.Setenv(envKey, testKey)
	f.Fuzz(func(t *testing.T, raw string) {
		lock, err := tenure.Open(context.Background(), raw, tenure.Vars{})
		if err != nil {
			if strings.Contains(err.Error(), testKey) {
				t.Errorf("the error holds the key: %v", err)
			}
			return
		}
		r, ok := lock.Register.(*Register)
		if !ok {
			return
		}
		req, err := r.store.newRequest(context.Background(), request{method: http.MethodGet, blob: r.blob})
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		again, err := url.Parse(req.URL.String())
		if err != nil || again.Host != r.store.endpoint.Host || again.Path != r.store.endpoint.Path+"/"+r.store.container+"/"+r.blob || again.RawQuery != "" {
			t.Errorf("%q asks %v (%v)", raw, req.URL, err)
		}
	})
}

// TestCredentials finds credentials in the environment, and refuses those that
// are another account's or broken, without quoting them.
func TestCredentials(t *testing.T) {
	const base = "azblob://locks/a?account=acct"
	sasToken := "sv=2020&sp=rcwl&sig=" + testKey
	for _, tt := range []struct {
		name string
		env  map[string]string
		url  string
		kind string
		says []string
	}{
		{"key", map[string]string{envKey: testKey}, base, "key", nil},
		{"key and its account", map[string]string{envKey: testKey, envAccount: "acct"}, base, "key", nil},
		{"signature", map[string]string{envSAS: "?" + sasToken}, base, "sas", nil},
		{"key before signature", map[string]string{envKey: testKey, envSAS: sasToken}, base, "key", nil},
		{"connection string", map[string]string{envConnection: "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=" + testKey + ";EndpointSuffix=core.windows.net"}, base, "key", nil},
		{"connection string with signature", map[string]string{envConnection: "BlobEndpoint=https://acct.blob.core.windows.net/;SharedAccessSignature=" + sasToken}, base, "sas", nil},
		{"emulator", map[string]string{envConnection: "UseDevelopmentStorage=true"}, "azblob://locks/a?endpoint=http://127.0.0.1:10000/" + testbed.AzuriteAccount, "key", nil},
		{"identity", map[string]string{"AZURE_TENANT_ID": "x", "AZURE_CLIENT_ID": "y"}, base, "token", nil},

		{"another account's key", map[string]string{envKey: testKey, envAccount: "other"}, base, "", []string{`"other"`, `"acct"`, envAccount}},
		{"broken key", map[string]string{envKey: "c2VjcmV0!"}, base, "", []string{envKey, "no account key"}},
		{"broken signature", map[string]string{envSAS: "c2VjcmV0"}, base, "", []string{envSAS, "no shared access signature"}},
		{"another account's string", map[string]string{envConnection: "AccountName=other;AccountKey=" + testKey}, base, "", []string{envConnection, `"other"`}},
		{"another cloud's string", map[string]string{envConnection: "AccountName=acct;AccountKey=" + testKey + ";EndpointSuffix=core.chinacloudapi.cn"}, base, "",
			[]string{"https://acct.blob.core.chinacloudapi.cn", "endpoint="}},
		{"broken string", map[string]string{envConnection: testKey}, base, "", []string{"no connection string"}},
		{"half a string", map[string]string{envConnection: "AccountName=acct"}, base, "", []string{"neither AccountKey"}},
		{"token in the clear", nil, "azblob://locks/a?account=acct&endpoint=http://blobs.test", "", []string{"a token", "in the clear", "https"}},
		{"signature in the clear", map[string]string{envSAS: sasToken}, "azblob://locks/a?account=acct&endpoint=http://blobs.test", "", []string{"in the clear"}},
		{"key signs only", map[string]string{envKey: testKey}, "azblob://locks/a?account=acct&endpoint=http://blobs.test", "key", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			lock, err := tenure.Open(t.Context(), tt.url, tenure.Vars{})
			if tt.says != nil {
				mustSay(t, err, tt.says...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s := lock.Register.(*Register).store
			if got := s.rights(s.now()).kind; got != tt.kind {
				t.Errorf("credential %q, want %q", got, tt.kind)
			}
		})
	}
}

// TestNames works with blobs whose names need escaping, in URLs and in
// signatures.
func TestNames(t *testing.T) {
	container := newContainer(t)
	for _, name := range []string{"a b", "a+b", "a%25b", "a%2Fb", "ü/漢字", "a&b=c;d", "a'b(c)!*~", "a%3Fb%23c", "a:b,c", "$web"} {
		r := openAt(t, azurite.Endpoint, container, name)
		v := mustWrite(t, r, name, "")
		if got, now := mustRead(t, r); got != name || now != v {
			t.Errorf("%s: it reads %q at %q", name, got, now)
		}
		mustWrite(t, r.Sibling(".candidates/x"), "1", "")
		if list, err := r.List(t.Context(), ".candidates/"); err != nil || len(list) != 1 || list[0] != ".candidates/x" {
			t.Errorf("%s: its siblings are %q, %v", name, list, err)
		}
	}
	r := openAt(t, azurite.Endpoint, container, "x.lock")
	for _, suffix := range []string{"", "a b", "/", "//a", "/..", "/.", ".a/", "é", ".a.", "?x", strings.Repeat("x", 1024)} {
		s := r.Sibling(suffix)
		if _, _, err := s.Read(t.Context()); err == nil || errors.Is(err, tenure.ErrNotExist) {
			t.Errorf("sibling %q: %v, want a refusal", suffix, err)
		}
		if _, err := s.Write(t.Context(), nil, ""); err == nil {
			t.Errorf("sibling %q was written", suffix)
		}
		if _, err := s.(tenure.Siblinger).Sibling(".x").Write(t.Context(), nil, ""); err == nil {
			t.Errorf("the sibling of sibling %q was written", suffix)
		}
	}
}

// TestPages lists siblings over several pages.
func TestPages(t *testing.T) {
	r := fresh(t)
	r.store.page = 2
	var want []string
	for _, c := range "abcde" {
		want = append(want, ".candidates/"+string(c))
		mustWrite(t, r.Sibling(want[len(want)-1]), "1", "")
	}
	got, err := r.List(t.Context(), ".candidates/")
	if err != nil || strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("list: %q, %v, want %q", got, err, want)
	}
}
