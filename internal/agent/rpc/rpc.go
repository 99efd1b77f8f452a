// Package rpc makes unary calls of gRPC and of the Connect protocol. Messages are bytes: the
// few that the agent sends and reads need no generated code.
package rpc

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
)

// MaxAnswer bounds an answer, in bytes, packed and unpacked.
const MaxAnswer = 64 << 10

// A StatusError is an HTTP answer that is no answer of the protocol: its status is not 200.
// Connect would give it a code of its own, from which the status cannot be known.
type StatusError struct {
	Code   int
	Header http.Header
	Body   []byte
}

// Error names the status.
func (e *StatusError) Error() string { return fmt.Sprintf("HTTP status %d", e.Code) }

// ErrLong says that an answer is longer than MaxAnswer.
var ErrLong = errors.New("the answer is too long")

// ReadAll reads the whole of an answer.
func ReadAll(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, MaxAnswer+1))
	if err == nil && len(body) > MaxAnswer {
		err = ErrLong
	}
	return body, err
}

// Call sends a message to a procedure and returns the message of the answer. The error may
// be a *StatusError, or a *connect.Error.
func Call(ctx context.Context, c *http.Client, url string, h http.Header, message []byte, options ...connect.ClientOption) ([]byte, error) {
	options = append([]connect.ClientOption{connect.WithCodec(codec{}), connect.WithReadMaxBytes(MaxAnswer)}, options...)
	request := connect.NewRequest(&message)
	maps.Copy(request.Header(), h)
	answer, err := connect.NewClient[[]byte, []byte](client{c}, url, options...).CallUnary(ctx, request)
	if err != nil {
		return nil, err
	}
	return *answer.Msg, nil
}

// Compressed is for messages that are compressed by gzip already.
func Compressed() connect.ClientOption {
	return connect.WithClientOptions(
		connect.WithAcceptCompression("gzip", func() connect.Decompressor { return &gzip.Reader{} }, func() connect.Compressor { return &passer{} }),
		connect.WithSendCompression("gzip"),
	)
}

// A client fails where an answer has another status than 200.
type client struct{ http *http.Client }

// Do sends a request.
func (c client) Do(r *http.Request) (*http.Response, error) {
	answer, err := c.http.Do(r)
	if err != nil || answer.StatusCode == http.StatusOK {
		return answer, err
	}
	defer answer.Body.Close()
	body, err := ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	return nil, &StatusError{answer.StatusCode, answer.Header, body}
}

// A codec passes bytes on, under the name that protocols know protobuf by.
type codec struct{}

func (codec) Name() string                  { return "proto" }
func (codec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (codec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(b)
	return nil
}

// A passer compresses what is compressed already: it passes it on.
type passer struct{ io.Writer }

func (p *passer) Reset(w io.Writer) { p.Writer = w }
func (*passer) Close() error        { return nil }

// ErrMessage says that bytes are not a message of protobuf.
var ErrMessage = errors.New("the answer is not the expected message")

// Fields calls field for each field of a message from another program. v is the value of
// a numeric field. b has the bytes of any other field.
func Fields(message []byte, field func(n protowire.Number, v uint64, b []byte)) error {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return ErrMessage
		}
		message = message[size:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			b, size = protowire.ConsumeBytes(message)
		default:
			size = protowire.ConsumeFieldValue(n, kind, message)
		}
		if size < 0 {
			return ErrMessage
		}
		message = message[size:]
		field(n, v, b)
	}
	return nil
}
