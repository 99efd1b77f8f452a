//go:build !soak

package main

// commandsEach is how many commands read each hostile recording. make soak has more.
const commandsEach = 1
