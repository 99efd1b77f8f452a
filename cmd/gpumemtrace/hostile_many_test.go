//go:build soak

package main

// commandsEach is how many commands read each hostile recording.
const commandsEach = 3
