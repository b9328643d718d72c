; Calls and lists.
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define (range a b) (if (>= a b) '() (cons a (range (+ a 1) b))))
(define (sum l) (if (null? l) 0 (+ (car l) (sum (cdr l)))))
(display (+ (fib 20) (sum (range 0 2000))))
(newline)
(quit 0)
