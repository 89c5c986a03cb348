// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
)

// intercept starts the proxy of [Options.Intercept] before API server i and
// returns its address. It ends TLS, so that faults can be told by request, and
// says to the API server who asked: by headers, which that believes from the
// front proxy's certificate, or by the token as it came.
func (c *Cluster) intercept(i int) (string, error) {
	pair, err := tls.LoadX509KeyPair(c.pki.path("apiserver.crt"), c.pki.path("apiserver.key"))
	if err != nil {
		return "", err
	}
	next, err := c.reverseProxy(i)
	if err != nil {
		return "", err
	}
	host := "127.0.0.1"
	if c.opts.Network != nil {
		host = c.opts.Network.HostAddr()
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	clients := x509.NewCertPool()
	clients.AddCert(c.pki.ca)
	s := &http.Server{
		Handler:  c.opts.Intercept(i, next),
		ErrorLog: log.New(io.Discard, "", 0), // of clients that hang up, which is the purpose
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{pair},
			ClientAuth:   tls.VerifyClientCertIfGiven,
			ClientCAs:    clients,
			MinVersion:   tls.VersionTLS12,
		},
	}
	go s.ServeTLS(l, "", "") // ends with Close
	c.servers = append(c.servers, s)
	return l.Addr().String(), nil
}

// reverseProxy passes requests on to API server i, over connections of their
// own for each kind of user: by a certificate, or else by what the request says.
func (c *Cluster) reverseProxy(i int) (http.Handler, error) {
	byCert, err := c.Client(i, frontProxy)
	if err != nil {
		return nil, err
	}
	target := &url.URL{Scheme: "https", Host: c.APIServer(i)}
	proxy := func(by *Client) *httputil.ReverseProxy {
		return &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				assert(r.Out.Header, r.In.TLS)
			},
			Transport:     by.http.Transport,
			FlushInterval: -1, // watches
			ErrorLog:      log.New(io.Discard, "", 0),
		}
	}
	certs, others := proxy(byCert), proxy(c.TokenClient(i, ""))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			certs.ServeHTTP(w, r)
		} else {
			others.ServeHTTP(w, r)
		}
	}), nil
}

// assert says who a client's certificate is of, and nothing that the client
// itself says about that.
func assert(h http.Header, state *tls.ConnectionState) {
	for name := range h {
		if strings.HasPrefix(name, "X-Remote-") {
			h.Del(name)
		}
	}
	if len(state.PeerCertificates) == 0 {
		return
	}
	who := state.PeerCertificates[0].Subject
	h.Set("X-Remote-User", who.CommonName)
	for _, group := range who.Organization {
		h.Add("X-Remote-Group", group)
	}
}
