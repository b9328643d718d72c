// Calls, objects and strings.
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
var words = {}, count = 0;
for (var i = 1; i < 60000; i++) {
    var word = "w" + (i * 40503 % 65521).toString(16);
    if (!words[word]) { words[word] = 0; count++; }
    words[word]++;
}
print(fib(23), count);
