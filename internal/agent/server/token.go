package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"os"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

const (
	// minToken and maxToken bound a token, in characters.
	minToken, maxToken = 16, 1024
	// maxTokenFile bounds a token's file, in bytes. The file may end in newlines.
	maxTokenFile = 4096
)

// ReadToken reads the token in a file. The file must have one line of 16 to 1,024 ASCII
// characters without spaces.
func ReadToken(path string) (string, error) {
	b, _, err := userfile.Read(path, maxTokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimRight(string(b), "\r\n")
	bad := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(token) < minToken || len(token) > maxToken || strings.ContainsFunc(token, bad) {
		return "", fmt.Errorf("read the token: %s must have one line of %d to %d ASCII characters without spaces", path, minToken, maxToken)
	}
	return token, nil
}

// readable reports whether other users may read a file.
func readable(path string) bool {
	i, err := os.Stat(path)
	return err == nil && i.Mode().Perm()&0o004 != 0
}

// same compares two texts in constant time.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
