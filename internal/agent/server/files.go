package server

import (
	"crypto/tls"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/reload"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// maxPEM bounds the file of a certificate with its chain, or of a key, in bytes.
const maxPEM = 1 << 20

// lookAgain is the time between two checks of whether a file changed.
const lookAgain = 5 * time.Second

// readCertificate reads a certificate and its key from two files.
func readCertificate(warn func(string), cert, key string) (*reload.Value[*tls.Certificate], error) {
	return reload.Load(lookAgain, warn, func() (*tls.Certificate, error) {
		var pem [2][]byte
		for i, path := range []string{cert, key} {
			var err error
			if pem[i], _, err = userfile.Read(path, maxPEM); err != nil {
				return nil, err
			}
		}
		c, err := tls.X509KeyPair(pem[0], pem[1])
		return &c, err
	}, cert, key)
}
