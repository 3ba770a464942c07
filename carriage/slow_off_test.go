//go:build !race && !purego

package carriage_test

// slowBuild is a build whose cryptography, or everything, is many times slower.
const slowBuild = false
