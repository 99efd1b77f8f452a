// Command otelcol is an OpenTelemetry collector with what the test needs: OTLP is
// received, and profiles are printed and written to a file, each request as a line of
// OTLP's JSON.
package main

import (
	"context"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/exporter/xexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func main() {
	cmd := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Version: "test"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			DefaultScheme:     "file",
		}},
	})
	if err := cmd.Execute(); err != nil {
		log.Fatal(err)
	}
}

func factories() (out otelcol.Factories, err error) {
	out.Telemetry = otelconftelemetry.NewFactory()
	if out.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory()); err != nil {
		return out, err
	}
	out.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](debugexporter.NewFactory(), lines())
	return out, err
}

type config struct {
	Path string `mapstructure:"path"`
}

// lines writes what it gets to a file.
func lines() exporter.Factory {
	return xexporter.NewFactory(component.MustNewType("lines"), func() component.Config { return &config{} },
		xexporter.WithProfiles(func(_ context.Context, _ exporter.Settings, c component.Config) (xexporter.Profiles, error) {
			f, err := os.OpenFile(c.(*config).Path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				return nil, err
			}
			return &writer{file: f}, nil
		}, component.StabilityLevelDevelopment))
}

type writer struct {
	mu   sync.Mutex
	file *os.File
}

func (*writer) Start(context.Context, component.Host) error { return nil }
func (w *writer) Shutdown(context.Context) error            { return w.file.Close() }
func (*writer) Capabilities() consumer.Capabilities         { return consumer.Capabilities{} }

func (w *writer) ConsumeProfiles(_ context.Context, p pprofile.Profiles) error {
	line, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(p)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = w.file.Write(append(line, '\n'))
	return err
}

var _ xconsumer.Profiles = (*writer)(nil)
