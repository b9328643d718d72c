-- Calls, tables and strings.
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local words, count = {}, 0
for i = 1, 150000 do
    local word = string.format("%x", i * 2654435761 % 65521)
    words[word] = (words[word] or 0) + 1
    if words[word] == 1 then count = count + 1 end
end
local list = {}
for word in pairs(words) do list[#list + 1] = word end
table.sort(list)
print(fib(29), count, #list)
