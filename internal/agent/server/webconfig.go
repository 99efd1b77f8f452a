package server

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/reload"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

const (
	// lookAgain is the time between two checks of whether a file changed.
	lookAgain = 5 * time.Second
	// maxWebConfig bounds a web configuration file, in bytes.
	maxWebConfig = 1 << 20
)

// A webFile is the part of Prometheus's web configuration file that the server knows. Its
// package exporter-toolkit is not used: it would make the program a quarter larger.
type webFile struct {
	TLS struct {
		Certificate string `yaml:"cert_file"`
		Key         string `yaml:"key_file"`
		ClientAuth  string `yaml:"client_auth_type"`
		ClientCAs   string `yaml:"client_ca_file"`
	} `yaml:"tls_server_config"`
	Users map[string]string `yaml:"basic_auth_users"` // bcrypt hashes of passwords, by user
}

// A webConfig says who may read over TCP.
type webConfig struct {
	tls   *tls.Config // nil for no TLS
	users map[string]string
}

// loadWebConfig reads a web configuration file, and reads it again when it or the files of its
// TLS change. It refuses one that begins or ends TLS, or that changes whether everybody may read.
func loadWebConfig(path string, warn func(string)) (*reload.Value[*webConfig], error) {
	var first *webConfig
	return reload.Load(lookAgain, warn, func() (*webConfig, []string, error) {
		c, files, err := readWebConfig(path)
		switch {
		case err != nil:
		case first == nil:
			first = c
		case (c.tls == nil) != (first.tls == nil) || c.asksWho() != first.asksWho():
			err = fmt.Errorf("%s: to begin or end TLS, or to ask for passwords or not, start the agent again", path)
		}
		return c, files, err
	})
}

// readWebConfig also returns the paths of the web configuration file and of those that it names,
// even with an error.
func readWebConfig(path string) (c *webConfig, files []string, err error) {
	files = []string{path}
	defer func() {
		if err != nil {
			err = fmt.Errorf("read the web configuration: %w", err)
		}
	}()
	text, _, err := userfile.Read(path, maxWebConfig)
	if err != nil {
		return nil, files, err
	}
	var f webFile
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		return nil, files, fmt.Errorf("%s: %w", path, err)
	}
	for name, hash := range f.Users {
		if _, err := bcrypt.Cost([]byte(hash)); err != nil {
			return nil, files, fmt.Errorf("%s: the password of %s is no bcrypt hash: %w", path, name, err)
		}
	}
	for _, file := range []*string{&f.TLS.Certificate, &f.TLS.Key, &f.TLS.ClientCAs} {
		if *file == "" {
			continue
		}
		if !filepath.IsAbs(*file) {
			*file = filepath.Join(filepath.Dir(path), *file)
		}
		files = append(files, *file)
	}
	c = &webConfig{users: f.Users}
	c.tls, err = f.tlsConfig()
	return c, files, err
}

// clientAuth are the values of client_auth_type.
var clientAuth = map[string]tls.ClientAuthType{
	"": tls.NoClientCert, "NoClientCert": tls.NoClientCert, "RequestClientCert": tls.RequestClientCert, "RequireAnyClientCert": tls.RequireAnyClientCert,
	"VerifyClientCertIfGiven": tls.VerifyClientCertIfGiven, "RequireAndVerifyClientCert": tls.RequireAndVerifyClientCert,
}

// tlsConfig returns nil if the file configures no TLS.
func (f *webFile) tlsConfig() (*tls.Config, error) {
	t := f.TLS
	if t.Certificate == "" && t.Key == "" && t.ClientAuth == "" && t.ClientCAs == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, err
	}
	auth, ok := clientAuth[t.ClientAuth]
	if !ok {
		return nil, fmt.Errorf("client_auth_type: there is no %q", t.ClientAuth)
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: auth, NextProtos: []string{"h2", "http/1.1"}}
	if t.ClientCAs != "" {
		pem, err := os.ReadFile(t.ClientCAs)
		if err != nil {
			return nil, err
		}
		out.ClientCAs = x509.NewCertPool()
		if !out.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", t.ClientCAs)
		}
	}
	if auth >= tls.VerifyClientCertIfGiven && out.ClientCAs == nil {
		return nil, errors.New("client_auth_type: to verify certificates takes client_ca_file")
	}
	return out, nil
}

// asksWho reports whether only some may read.
func (c *webConfig) asksWho() bool {
	return len(c.users) > 0 || c.tls != nil && c.tls.ClientAuth == tls.RequireAndVerifyClientCert
}

// maxChecks bounds the passwords that wait to be checked.
const maxChecks = 16

// passwords checks passwords, one at a time because that is costly. It remembers those that were
// right.
type passwords struct {
	waiting chan struct{} // has a slot for each of maxChecks
	mu      sync.Mutex    // held during a check
	right   sync.Map      // the sums of user, hash and password
}

func newPasswords() *passwords { return &passwords{waiting: make(chan struct{}, maxChecks)} }

// nobody is a hash of no password, compared for users that do not exist: so a check takes
// as long as that of another user.
const nobody = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"

// check reports whether a password is that of a user. The error is errBusy if too many wait.
func (p *passwords) check(users map[string]string, name, password string) (bool, error) {
	hash, known := users[name]
	if !known {
		hash = nobody
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", name, hash, password))
	if _, ok := p.right.Load(sum); ok {
		return true, nil
	}
	select {
	case p.waiting <- struct{}{}:
		defer func() { <-p.waiting }()
	default:
		return false, errBusy
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil || !known {
		return false, nil
	}
	p.right.Store(sum, true)
	return true, nil
}
