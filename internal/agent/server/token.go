package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

const (
	// minToken and maxToken bound a token, in characters.
	minToken, maxToken = 16, 1024
	// maxTokenFile bounds a token's file, in bytes: it may end in newlines.
	maxTokenFile = 4096
	// cookieFor is how long a login lasts.
	cookieFor = 12 * time.Hour
)

// ReadToken reads the token in a file: its one line, of 16 to 1,024 characters of ASCII
// without spaces.
func ReadToken(path string) (string, error) {
	b, _, err := userfile.Read(path, maxTokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimRight(string(b), "\r\n")
	bad := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(token) < minToken || len(token) > maxToken || strings.ContainsFunc(token, bad) {
		return "", fmt.Errorf("read the token: %s is to have one line of %d to %d characters of ASCII without spaces", path, minToken, maxToken)
	}
	return token, nil
}

// readable tells whether other users may read a file.
func readable(path string) bool {
	i, err := os.Stat(path)
	return err == nil && i.Mode().Perm()&0o004 != 0
}

// same compares in a time that does not depend on what is compared.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// cookieOf returns what proves until a time that who sends it gave the token, and from
// where: nobody can make the token or another cookie of it.
func cookieOf(token, from string, until time.Time) string {
	h := hmac.New(sha256.New, []byte(token))
	fmt.Fprintf(h, "gpumemtrace cookie\n%d\n%s", until.Unix(), from)
	return strconv.FormatInt(until.Unix(), 10) + "." + hex.EncodeToString(h.Sum(nil))
}

// proves tells whether a cookie is one of cookieOf that is still good.
func proves(cookie, token, from string, now time.Time) bool {
	text, _, _ := strings.Cut(cookie, ".")
	until, err := strconv.ParseInt(text, 10, 64)
	return err == nil && until > now.Unix() && until <= now.Add(cookieFor).Unix() && same(cookie, cookieOf(token, from, time.Unix(until, 0)))
}
