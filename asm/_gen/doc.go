// Package gen holds a program for each kernel below asm, which writes the
// kernel's assembly and Go stubs with avo. It is a module of its own, so that
// nobody who builds Trestle needs avo. See README.md.
package gen
